"""The console in a real browser: every page opens, asks no other host for anything, and says nothing is wrong.

`--console-pictures docs/static` has it save the pictures of docs/console.md, too.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from chromium import Chromium, chromium_path
from http_gateway import HttpGateway

import semel
from semel.sdk.admin.rates import Flow
from semel.testing import Broker
from semel.web.console.sampler import Sample
from semel.web.console.visit import Console

PICTURE_BYTES_MAX: Final = 150_000
PHONE: Final = (390, 800)
DESK: Final = (1100, 760)

pytestmark = pytest.mark.skipif(chromium_path() is None, reason="Chromium is not installed (Debian: chromium)")

PICTURED: Final = {
    "overview": "",
    "topic": "topic?name=orders",
    "records": "records?topic=orders&count=12",
    "group": "group?id=billing",
    "transactions": "transactions",
    "transaction": "transaction?key=enrich-0",
    "jobs": "jobs",
    "topics": "topics",
    "topic-settings": "topic/settings?name=orders",
    "record": "record?topic=orders&partition=0&offset=0",
    "publish": "publish?topic=orders",
    "groups": "groups",
    "abort": "transaction/abort?key=enrich-0",
    "metrics": "metrics",
}
"""Pages that docs/console.md shows."""
OTHERS: Final = (
    "token?token=day-1",
    "access",
)


def fill(broker: Broker) -> None:
    """Two topics, a group that is behind, a committed and an aborted transaction, and the batches of a Spark query."""
    with semel.Admin(broker.bootstrap) as admin:
        admin.create_topic("orders", partitions=3)
        admin.create_topic("enriched", partitions=2)
    with semel.Producer(broker.bootstrap) as producer:
        for number in range(60):
            order = {"id": number, "amount": 30.5, "customer": f"c-{number % 7}", "items": ["pear"]}
            trace = f"00-{number + 1:032x}-{number + 1:016x}-01".encode()
            producer.send("orders", json.dumps(order).encode(), key=b"%d" % number, headers=[("traceparent", trace)])
    with semel.Consumer(broker.bootstrap, group="billing", topics=["orders"]) as consumer:
        read = 0
        while read < 40:
            read += len(consumer.poll(5, 10) or ())
            consumer.commit()
    with semel.Producer(broker.bootstrap, transactional_id="enrich-0") as producer:
        with producer.transaction(token="day-1") as transaction:
            transaction.send("enriched", b"ENRICHED")
        producer.begin_transaction()
        producer.send("enriched", b"dropped")
        producer.flush()
        producer.abort_transaction()
    key = "spark/4f6c5b1e-6f0e-4d0c-9a53-0d5a3c1d6d4e/enriched"
    for batch, ends in enumerate((20, 45)):
        with semel.SharedTransaction.open(broker.bootstrap, key, token=f"batch-{batch}", sequence=batch) as shared:
            with shared.join() as writer:
                writer.send("enriched", b"ENRICHED")
                written = writer.finish()
            shared.commit([written], payload=b'{"end":["{\\"orders\\":{\\"0\\":%d}}"]}' % ends)


def an_hour(now_ms: int) -> Iterator[Sample]:
    """Samples of an hour, so that the plots have lines: made up, since nobody waits for them."""
    for place in range(360):
        wave = 1 + math.sin(place / 25) + place % 7 / 20
        flows = {"orders": Flow(400_000 * wave, 700_000 * wave)}
        lag = max(0, round(900 * math.sin(place / 40)))
        yield Sample(
            now_ms - (360 - place) * 10_000, 400_000 * wave, 700_000 * wave, lag, place // 60 % 3, place // 120 % 2,
            flows, {"billing": lag},
        )  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.limit_disk(80 << 30)
        fill(broker)
        yield broker


@pytest.fixture(scope="module")
def open_transaction(broker: Broker) -> Iterator[semel.Producer]:
    with semel.Producer(broker.bootstrap, transactional_id="enrich-0") as producer:
        producer.begin_transaction()
        producer.send("enriched", b"open", partition=0)
        producer.flush()
        yield producer
        producer.abort_transaction()


@pytest.fixture(scope="module")
def gateway(broker: Broker, open_transaction: semel.Producer) -> Iterator[HttpGateway]:
    with HttpGateway(broker.bootstrap, allows_changes=True) as gateway:
        console = gateway.gateway.shared(Console, lambda: pytest.fail("the gateway has no console"))
        console.sampler.samples.extendleft(reversed(list(an_hour(round(time.time() * 1000)))))
        yield gateway


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    path = chromium_path()
    assert path is not None
    with Chromium(path, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def check(browser: Chromium, gateway: HttpGateway) -> None:
    """Nothing was wrong so far, and nobody else was asked for anything."""
    assert browser.errors == []
    assert {urlsplit(url).netloc for url in browser.requested if not url.startswith("data:")} <= {gateway.address}


@pytest.mark.parametrize("path", [*PICTURED.values(), *OTHERS])
def test_pages_open_on_a_desk_and_on_a_phone(browser: Chromium, gateway: HttpGateway, path: str) -> None:
    for size, is_dark in ((DESK, False), (PHONE, True)):
        browser.window(*size, is_dark=is_dark)
        browser.open(f"{gateway.url}/console/{path}")
        assert browser.value("document.querySelector('h1').textContent").strip()
        assert browser.value("document.querySelectorAll('[role=alert]').length") == 0
        assert browser.value("document.documentElement.scrollWidth <= window.innerWidth"), size
        background = browser.value("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") is not is_dark
    check(browser, gateway)


@pytest.mark.parametrize("name", PICTURED)
def test_pictures_are_small(browser: Chromium, gateway: HttpGateway, name: str, pytestconfig: pytest.Config) -> None:
    browser.window(*DESK)
    browser.open(f"{gateway.url}/console/{PICTURED[name]}")
    picture = browser.picture()
    assert len(picture) < PICTURE_BYTES_MAX
    folder = pytestconfig.getoption("console_pictures")
    if folder:
        Path(folder, f"console-{name}.png").write_bytes(picture)


def test_the_root_leads_a_browser_to_the_console(browser: Chromium, gateway: HttpGateway) -> None:
    browser.open(f"{gateway.url}/")
    assert browser.value("location.pathname") == "/console/"
    check(browser, gateway)


def test_a_setting_is_changed_by_clicks_alone(browser: Chromium, gateway: HttpGateway, broker: Broker) -> None:
    browser.open(f"{gateway.url}/console/topic/settings?name=enriched")
    browser.value("document.getElementsByName('set:retention.ms')[0].value = '123456'; 0")
    browser.click("main form button", loads=True)
    assert "123456" in browser.value("document.querySelector('main').textContent")
    browser.click("button.danger", loads=True)
    assert browser.value("document.querySelector('.done').textContent") == "The settings are changed."
    with semel.Admin(broker.bootstrap) as admin:
        (entry,) = admin.topic_configs("enriched", ["retention.ms"])
    assert entry.value == "123456"
    check(browser, gateway)


def test_new_records_are_followed(browser: Chromium, gateway: HttpGateway, broker: Broker) -> None:
    browser.open(f"{gateway.url}/console/records?topic=orders")
    browser.click("button[data-tail]")
    browser.wait_for("document.getElementById('tail-state').textContent === 'following'")
    with semel.Producer(broker.bootstrap) as producer:
        producer.send("orders", b"<img src=x onerror=alert(1)> arrived").result()
    browser.wait_for("document.querySelector('#records tr').textContent.includes('arrived')")
    assert browser.value("document.querySelectorAll('#records img').length") == 0
    check(browser, gateway)


def test_what_strangers_write_is_text(browser: Chromium, gateway: HttpGateway, broker: Broker) -> None:
    hostile = b"<script>document.title = 'taken'</script>\xe2\x80\xaegnp.exe"
    with semel.Producer(broker.bootstrap) as producer:
        sent = producer.send("orders", hostile, key=hostile, headers=[("<b onclick=alert(1)>", hostile)]).result()
    browser.open(f"{gateway.url}/console/record?topic=orders&partition={sent.partition}&offset={sent.offset}")
    assert browser.value("document.title").startswith("Record ")
    assert browser.value("document.querySelector('pre').textContent").endswith("\\u202egnp.exe")
    assert browser.value("document.querySelectorAll('main script, main [onclick]').length") == 0
    check(browser, gateway)
