"""The console's page of the remote storage: what topics hold there, what nodes asked, and about what a month costs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from console_client import ConsoleClient
from http_gateway import HttpGateway
from live_node import LiveNode

import semel
from semel.sdk.diagnosis.remote_costs import RemoteState, RemoteTopic, remote_state
from semel.testing import Broker
from semel.web.console import storage, topics

WITHIN_S = 60.0
TIERED = {"remote.storage.enable": "true", "segment.bytes": "100000"}
RECORDS = {"some": 4, "most": 9}
"""Topics, with how many records of 90 kB they have, each in a segment of its own; all but the last one are copied."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="module")
def console(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleClient]:
    settings = {"remote_storage_url": f"file://{store}", "remote_log_manager_task_interval_ms": 100}
    with LiveNode(tmp_path_factory.mktemp("node"), **settings) as node, semel.Admin(node.bootstrap) as admin:
        admin.create_topic("local")
        with semel.Producer(node.bootstrap) as producer:
            for name, records in RECORDS.items():
                admin.create_topic(name, configs=TIERED)
                for _ in range(records):
                    producer.send(name, bytes(90_000))
                    producer.flush()
        until(lambda: is_copied(remote_state(admin.diagnose().cluster)))
        with HttpGateway(node.bootstrap) as gateway:
            yield ConsoleClient(gateway.address)


def is_copied(state: RemoteState | None) -> bool:
    assert state is not None
    found = {one.topic: one.stored_bytes for one in state.topics}
    return all(found.get(name, 0) >= (records - 1) * 90_000 for name, records in RECORDS.items())


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_page_says_what_each_topic_holds_the_largest_first(console: ConsoleClient, store: Path) -> None:
    page = console.get("storage")
    assert page.status == 200
    assert f"file://{store}" in page.plain
    assert page.text.index("topic?name=most") < page.text.index("topic?name=some")
    assert "name=local" not in page.text
    (puts,) = re.findall(r'<tr><td class="n">1</td><td>[^<]*</td><td class="n">(\d+)</td>', page.text)
    assert int(puts) >= sum(RECORDS.values()) - len(RECORDS), "what the one node asked"
    filtered = console.get("storage", filter="SOM")
    assert "topic?name=some" in filtered.text
    assert "topic?name=most" not in filtered.text
    assert "No topic that has anything there" in console.get("storage", filter="zzz").plain


def test_a_directory_has_no_price(console: ConsoleClient) -> None:
    page = console.get("storage")
    assert "A directory has no price." in page.plain
    assert "USD" not in page.plain


def test_a_store_has_a_price(console: ConsoleClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (storage, topics):
        monkeypatch.setattr(module, "has_price", lambda location, prices: True)
    page = console.get("storage")
    assert "a month (USD)" in page.plain
    assert "list prices of S3 Standard in us-east-1" in page.plain
    assert re.search(
        r'name=most">most</a></td><td class="n">\d+</td><td class="n">[^<]*</td><td class="n">&lt;0.01<', page.text
    )
    until(lambda: "in the remote storage , about <0.01 USD a month" in console.get("topic", name="most").plain)
    assert "in the remote storage" not in console.get("topic", name="local").plain


def test_thousands_of_topics_have_pages_and_it_says_that_there_are_more(
    console: ConsoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics_there = tuple(RemoteTopic(f"t-{number:04}", 1, 10_000 - number) for number in range(2_500))
    state = RemoteState("s3://bucket", (), topics_there, all_topics=False, stored_objects=9_000, stored_bytes=1 << 40)
    monkeypatch.setattr(storage, "remote_state", lambda cluster: state)
    first, last = console.get("storage"), console.get("storage", page="50")
    assert "t-0000" in first.plain
    assert "t-2499" not in first.plain
    assert "t-2499" in last.plain
    assert "others are missing here" in first.plain
    assert "t-1234" in console.get("storage", filter="1234").plain


def test_a_topic_says_what_it_holds_there(console: ConsoleClient) -> None:
    until(lambda: "in the remote storage" in console.get("topic", name="most").plain)
    page = console.get("topic", name="most")
    assert "/console/storage?filter=most" in page.text
    assert "USD" not in page.plain


def test_without_a_remote_storage_the_page_says_what_one_is_for(broker: Broker) -> None:
    with HttpGateway(broker.bootstrap) as gateway:
        page = ConsoleClient(gateway.address).get("storage")
        assert "No node that answers has a remote storage." in page.plain
        assert "remote.storage.url" in page.plain
