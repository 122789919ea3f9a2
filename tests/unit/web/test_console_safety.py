"""Who may see and change what in the console, and that what strangers write is only ever text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator

import pytest
from console_client import ConsoleClient
from http_gateway import HttpGateway

import semel
from semel.protocol.ids import TopicPartition
from semel.testing import Broker
from semel.web.console.part import CHANGING_PATHS
from semel.web.console.visit import COOKIE, TOKEN_FIELD, environment

HOSTILE = "<script>alert(1)</script>\"'`&amp;\u202egnp.exe\u200b\x1b[2J"
HOSTILE_BYTES = HOSTILE.encode() + b"\xff\xfe</pre><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def writing(broker: Broker) -> Iterator[ConsoleClient]:
    with semel.Admin(broker.bootstrap) as admin:
        admin.create_topic("safe", partitions=1)
    with HttpGateway(broker.bootstrap, allows_changes=True) as gateway:
        yield ConsoleClient(gateway.address)


def published(broker: Broker) -> int:
    return len(broker.records("safe"))


def test_forms_of_other_pages_are_refused(writing: ConsoleClient, broker: Broker) -> None:
    page = writing.get("publish", topic="safe")
    right = {**page.hidden, "value": "x"}
    before = published(broker)
    assert writing.cookies[COOKIE] == page.hidden[TOKEN_FIELD]
    for fields in ({"value": "x"}, {**right, TOKEN_FIELD: ""}, {**right, TOKEN_FIELD: "guessed"}):
        refused = writing.post("publish", fields, topic="safe")
        assert refused.status == 403
        assert "this form was not made by a page of this console" in refused.plain
    stranger = ConsoleClient(writing.address)  # a browser without the cookie
    assert stranger.post("publish", right, topic="safe").status == 403
    stranger.cookies[COOKIE] = "another"
    assert stranger.post("publish", right, topic="safe").status == 403
    foreign = {"Origin": "https://evil.example"}
    assert writing.post("publish", right, foreign, topic="safe").status == 403
    assert writing.post("publish", right, {"Content-Type": "text/plain"}, topic="safe").status == 415
    assert published(broker) == before
    assert writing.post("publish", right, topic="safe").status == 200
    assert published(broker) == before + 1


def test_the_cookie_stays_with_the_console(gateway: HttpGateway) -> None:
    told = ConsoleClient(gateway.address).get("").headers["set-cookie"].lower()
    assert "httponly" in told
    assert "samesite=strict" in told
    assert "path=/console/" in told


def test_a_console_that_only_reads_changes_nothing(gateway: HttpGateway, broker: Broker) -> None:
    reading = ConsoleClient(gateway.address)
    page = reading.get("publish", topic="safe")
    assert "read only" in page.plain
    assert '<form class="stack"' not in page.text
    assert len(CHANGING_PATHS) >= 6
    for path in CHANGING_PATHS:
        fields = {TOKEN_FIELD: reading.cookies[COOKIE], "value": "x", "sure": "yes"}
        refused = reading.post(path, fields, topic="safe", name="safe", id="g", key="k")
        assert refused.status == 403
        assert "--console-writes" in refused.plain
    assert reading.get("topic/settings", name="safe").text.count("<input name=") == 0


def test_too_many_fields_are_refused(writing: ConsoleClient) -> None:
    assert writing.post("publish", {str(number): "" for number in range(501)}, topic="safe").status == 400


def test_what_strangers_write_is_text_on_every_page(writing: ConsoleClient, broker: Broker) -> None:
    with semel.Producer(broker.bootstrap) as producer:
        sent = producer.send(
            "safe", HOSTILE_BYTES, key=HOSTILE_BYTES, headers=[(HOSTILE, HOSTILE_BYTES), ("h", None)]
        ).result()
    with semel.Producer(broker.bootstrap, transactional_id=HOSTILE) as transactional:
        with transactional.transaction(token=HOSTILE) as transaction:
            transaction.send("safe", b"x")
        transactional.begin_transaction()
        transactional.send("safe", b"open")
        transactional.flush()
        with semel.Admin(broker.bootstrap) as admin:
            admin.alter_group_offsets(HOSTILE, {TopicPartition("safe", 0): 0})
        place = {"topic": "safe", "partition": 0, "offset": sent.offset}
        pages = [
            writing.get(""),
            writing.get("records", topic="safe", isolation="read_uncommitted"),
            *(writing.get("record", **place, format=form) for form in ("auto", "json", "text", "hex", "schema")),
            writing.get("records", topic="safe", key=HOSTILE),
            writing.get("groups", filter=HOSTILE[:8]),
            writing.get("group", id=HOSTILE),
            writing.get("transactions"),
            writing.get("transaction", key=HOSTILE),
            writing.get("transaction", key=HOSTILE, token=HOSTILE),
            writing.get("transaction/abort", key=HOSTILE),
            writing.get("token", token=HOSTILE),
            writing.get("topic", name=HOSTILE),
            writing.get("topics", filter=HOSTILE),
            writing.get("metrics", page=HOSTILE),
        ]
        transactional.abort_transaction()
    for page in pages:
        assert page.status in (200, 400, 404), page.plain
        assert "<script>" not in page.text
        assert "<img" not in page.text
        assert not set("\u202e\u200b\x1b") & set(page.text)
    assert sum("&lt;script&gt;alert(1)" in page.text for page in pages) >= len(pages) - 4
    assert sum("\\u202e" in page.text for page in pages) >= len(pages) - 4


def test_templates_escape_whatever_they_are_given() -> None:
    made = environment()
    assert made.from_string("{{ a }}").render(a=HOSTILE).startswith("&lt;script&gt;")
    assert "\\u202e" in made.from_string("{{ a }}").render(a=HOSTILE)
    assert made.from_string("{{ a }}").render(a="\udcff\ud800") == "\\xff\\ud800"
    assert made.from_string("{{ link('x', a=a) }}").render(a='"><b>') == "/console/x?a=%22%3E%3Cb%3E"


def basic(user: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{user}-secret".encode()).decode()}


def test_users_see_what_they_may_see() -> None:
    users = {name: f"{name}-secret" for name in ("alice", "gateway")}
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with (
        Broker(users=users, authorizer_class_name=authorizer, super_users="User:gateway") as broker,
        HttpGateway(broker.bootstrap_of("gateway"), has_users=True, allows_changes=True) as gateway,
        semel.Admin(broker.bootstrap_of("gateway")) as admin,
    ):
        admin.create_topic("hers", partitions=1)
        admin.create_topic("secret", partitions=1)
        admin.create_acls([semel.Acl.allow("User:alice", "read", topic="hers")])
        console = ConsoleClient(gateway.address)
        assert console.get("topics").status == 401
        alice, own = basic("alice"), basic("gateway")
        listed = console.get("topics", alice)
        assert "hers" in listed.plain
        assert "secret" not in listed.plain
        assert "alice" in listed.plain
        assert console.get("records", alice, topic="hers").status == 200
        assert console.get("records", alice, topic="secret").status in (403, 404)
        refused = console.get("transactions", alice)
        assert "You may not ask which ones hold readers back" in refused.plain
        assert console.get("metrics", alice).status == 403
        assert "You may not ask for this" in console.get("storage", alice).plain
        assert "No node that answers has a remote storage." in console.get("storage", own).plain
        front = console.get("", alice)
        assert front.status == 200, "the first page has what she may see"
        assert "1 topic" in front.plain
        assert front.plain.count("You may not ask for this") == 2
        forbidden = {**front.hidden, "offsets": "hers:0:0"}
        reset = console.post("group/offsets", forbidden, alice, id="g")
        assert reset.status == 403
        assert "members must be stopped" not in reset.plain
        page = console.get("publish", alice, topic="hers")
        form = {**page.hidden, "value": "x"}
        assert console.post("publish", form, alice, topic="hers").status == 403
        everything = console.get("access", own)
        assert "User:alice read topic hers" in everything.plain
        assert console.get("metrics", own).status == 200
