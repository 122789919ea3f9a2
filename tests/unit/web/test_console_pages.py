"""The console's pages, through HTTP and against a node: what they show, and what their forms change."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from console_client import ConsoleClient
from http_gateway import HttpGateway

import semel
from semel.protocol.ids import TopicPartition
from semel.testing import Broker
from semel.web.console.visit import Console
from semel.web.limits import Limits

PAGES = (
    "",
    "topics",
    "topic?name=pages",
    "topic/settings?name=pages",
    "records?topic=pages",
    "record?topic=pages&partition=0&offset=0",
    "publish?topic=pages",
    "groups",
    "transactions",
    "token",
    "jobs",
    "storage",
    "access",
    "metrics",
)


@pytest.fixture(scope="module")
def console(broker: Broker) -> Iterator[ConsoleClient]:
    with (
        HttpGateway(broker.bootstrap, allows_changes=True) as gateway,
        semel.Producer(broker.bootstrap) as producer,
        semel.Admin(broker.bootstrap) as admin,
    ):
        admin.create_topic("pages", partitions=2)
        for number in range(30):
            producer.send("pages", b'{"n":%d,"price":1.50}' % number, key=b"k%d" % number, partition=number % 2)
        producer.flush()
        yield ConsoleClient(gateway.address)


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[semel.Admin]:
    with semel.Admin(broker.bootstrap) as admin:
        yield admin


def offsets_shown(text: str) -> list[str]:
    return re.findall(r"offset=(\d+)\">\1</a>", text)


@pytest.mark.parametrize("path", PAGES)
def test_each_page_is_whole_and_tells_the_browser_what_to_refuse(console: ConsoleClient, path: str) -> None:
    page = console.get(path)
    assert page.status == 200
    assert page.text.rstrip().endswith("</html>")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"
    assert not re.search(r"<[^>]+\s(style|on\w+)=|<script>|<style", page.text)
    assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "")


def test_the_root_leads_browsers_alone_to_the_console(broker: Broker) -> None:
    with HttpGateway(broker.bootstrap) as gateway:
        assert gateway.ask("GET", "/", headers={"Accept": "text/html,*/*"}).headers["location"] == "/console/"
        assert gateway.ask("GET", "/", headers={"Accept": "application/json"}).body == {}
        assert gateway.ask("GET", "/console").headers["location"] == "/console/"


def test_what_is_not_there_is_a_sentence(console: ConsoleClient) -> None:
    for path, status, said in (
        ("topic?name=nope", 404, "there is no topic 'nope'"),
        ("topic", 400, "the address of this page lacks 'name'"),
        ("records?topic=pages&partition=7", 404, "has no partition 7: they are 0 to 1"),
        ("records?topic=pages&partition=x", 400, "partition takes a number"),
        ("records?topic=pages&begin=time&time=soon", 400, "'soon' is no time"),
        ("record?topic=pages&partition=0&offset=99", 404, "has no record at offset 99"),
        ("group?id=nobody", 404, "nobody"),
        ("transaction?key=never", 404, "the log has nothing about 'never'"),
        ("transaction/abort?key=never", 409, "has nothing open"),
        ("no-such-page", 404, "the console has no such page"),
    ):
        page = console.get(path)
        assert (page.status, said in page.plain) == (status, True), (path, page.plain)


def test_topics_are_filtered_by_name(console: ConsoleClient, admin: semel.Admin) -> None:
    admin.create_topic("filtered-one")
    admin.create_topic("Filtered-two")
    page = console.get("topics", filter="FILTERED")
    assert "filtered-one" in page.text
    assert "Filtered-two" in page.text
    assert "name=pages" not in page.text
    assert "No topic has a name that contains this." in console.get("topics", filter="zzz").plain
    assert "__transaction_state" not in page.text


def test_a_topic_shows_where_its_partitions_begin_and_end(
    console: ConsoleClient, admin: semel.Admin, broker: Broker
) -> None:
    admin.create_topic("offsets", partitions=1)
    with semel.Producer(broker.bootstrap, transactional_id="holds") as producer:
        producer.begin_transaction()
        for _ in range(3):
            producer.send("offsets", b"open")
        producer.flush()
        page = console.get("topic", name="offsets")
        assert "0 0 3 wait 3 Records" in page.plain
        producer.abort_transaction()
    assert re.search(r"\d wait", console.get("topic", name="offsets").plain) is None


# --- Settings ---------------------------------------------------------------------------------------------------------


def test_settings_are_shown_before_they_are_changed(console: ConsoleClient, admin: semel.Admin) -> None:
    admin.create_topic("set", configs={"retention.bytes": "5000"})

    def value(name: str) -> str:
        (entry,) = admin.topic_configs("set", [name])
        return entry.value

    before = value("retention.ms")
    page = console.get("topic/settings", name="set")
    assert re.search(r"retention.bytes.*?this topic", page.plain)
    fields = {"set:retention.ms": "777777", "set:retention.bytes": "5000", "reset:retention.bytes": "on"}
    preview = console.send(page, "topic/settings/preview", fields, name="set")
    assert f"retention.ms {before} 777777" in preview.plain
    assert "retention.bytes 5000 the default" in preview.plain
    assert value("retention.ms") == before
    changed = console.send(preview, "topic/settings", {}, name="set")
    assert "The settings are changed." in changed.plain
    assert value("retention.ms") == "777777"
    assert value("retention.bytes") == "-1"


def test_a_setting_that_the_node_refuses_is_not_changed(console: ConsoleClient, admin: semel.Admin) -> None:
    admin.create_topic("refused")
    page = console.get("topic/settings", name="refused")
    preview = console.send(page, "topic/settings/preview", {"set:retention.ms": "soon"}, name="refused")
    assert preview.status >= 400
    assert "retention.ms" in preview.plain
    same = console.send(page, "topic/settings/preview", {}, name="refused")
    assert "Nothing would change." in same.plain
    assert console.send(page, "topic/settings", {}, name="refused").status == 400


# --- Groups -----------------------------------------------------------------------------------------------------------


def test_a_groups_offsets_are_set_as_it_was_shown(console: ConsoleClient, admin: semel.Admin, broker: Broker) -> None:
    admin.create_topic("grouped", partitions=2)
    group = "a/group & <b>"
    with semel.Producer(broker.bootstrap) as producer:
        for number in range(10):
            producer.send("grouped", b"x", partition=number % 2)
    places = [TopicPartition("grouped", 0), TopicPartition("grouped", 1)]
    admin.alter_group_offsets(group, {places[0]: 1, places[1]: 5})
    page = console.get("group", id=group)
    assert "grouped-0 1 5 4 -" in page.plain
    assert "4 records of lag" in page.plain
    for to, offset, after in (("earliest", "", [0, 0]), ("latest", "", [5, 5]), ("offset", "3", [3, 3])):
        preview = console.send(page, "group/preview", {"to": to, "offset": offset}, id=group)
        assert preview.status == 200
        before = {tp: one.offset for tp, one in admin.group_offsets(group).items()}
        assert before != dict(zip(places, after, strict=True))
        done = console.send(preview, "group/offsets", {}, id=group)
        assert "The offsets of the group are set." in done.plain
        assert [admin.group_offsets(group)[tp].offset for tp in places] == after
    too_far = console.send(page, "group/preview", {"to": "offset", "offset": "99"}, id=group)
    assert "2 are skipped (the log ends before that: its end)" in too_far.plain
    later = console.send(page, "group/preview", {"to": "time", "time": "2100-01-01"}, id=group)
    assert "no record is that new: the end" in later.plain
    assert console.send(page, "group/preview", {"to": "offset", "offset": "-1"}, id=group).status == 400
    assert console.send(page, "group/preview", {"to": "sideways"}, id=group).status == 400
    assert console.send(page, "group/offsets", {"offsets": "nonsense"}, id=group).status == 400


def test_a_group_with_members_is_left_alone(console: ConsoleClient, broker: Broker) -> None:
    with semel.Consumer(broker.bootstrap, group="busy", topics=["pages"]) as consumer:
        assert consumer.poll(30, 1) is not None
        consumer.commit()
        page = console.get("group", id="busy")
        assert "1 member" in page.plain
        assert "Stop its members first" in page.plain
        refused = console.send(
            console.get("groups"), "group/offsets", {**console.get("publish", topic="pages").hidden,
            "offsets": "pages:0:0"}, id="busy",
        )  # fmt: skip
        assert refused.status == 409
        assert "the offsets are not set" in refused.plain
    assert "busy" in console.get("groups", filter="BUS").plain


# --- Transactions -----------------------------------------------------------------------------------------------------


def test_an_open_transaction_is_explained_and_aborted(
    console: ConsoleClient, admin: semel.Admin, broker: Broker
) -> None:
    admin.create_topic("held", partitions=1)
    producer = semel.Producer(broker.bootstrap, transactional_id="stuck/1")
    try:
        with producer.transaction(token="first") as transaction:
            transaction.send("held", b"committed")
        producer.begin_transaction()
        producer.send("held", b"open")
        producer.flush()
        listed = console.get("transactions")
        assert re.search(r"held-0 stuck/1 .*? 1 2", listed.plain)
        page = console.get("transaction", key="stuck/1")
        assert "Ongoing" in page.plain
        assert "it times out at" in page.plain
        assert "a transaction began" in page.plain
        assert "complete: committed, and all partitions have its markers" in page.plain
        form = console.get("transaction/abort", key="stuck/1")
        assert "What it has written is dropped" in form.plain
        assert console.send(form, "transaction/abort", {}, key="stuck/1").status == 400
        assert admin.transaction("stuck/1").state == "Ongoing"
        done = console.send(form, "transaction/abort", {"sure": "yes"}, key="stuck/1")
        assert "The transaction is aborted." in done.plain
        assert "an operator" in done.plain
        assert admin.transaction("stuck/1").state in ("PrepareAbort", "CompleteAbort")
        with pytest.raises(semel.SemelError):
            producer.commit_transaction()
    finally:
        producer.close()
    assert "stuck/1" in console.get("transactions", filter="STUCK").plain
    assert "There is none of these." in console.get("transactions", state="PrepareCommit").plain
    assert console.get("transactions", state="Sideways").status == 400


def test_an_abort_is_of_the_transaction_that_was_shown(console: ConsoleClient, broker: Broker) -> None:
    """The next one was aborted where it was open by then, and its program was fenced."""
    with semel.Producer(broker.bootstrap, transactional_id="goes-on") as producer:
        producer.begin_transaction()
        producer.send("pages", b"first").result()
        form = console.get("transaction/abort", key="goes-on")
        producer.commit_transaction()
        ended = console.send(form, "transaction/abort", {"sure": "yes"}, key="goes-on")
        assert ended.status == 409
        assert "nothing is open now" in ended.plain
        producer.begin_transaction()
        producer.send("pages", b"second").result()
        other = console.send(form, "transaction/abort", {"sure": "yes"}, key="goes-on")
        assert other.status == 409
        assert "another one is open now" in other.plain
        producer.commit_transaction()
    key = "shared-goes-on"
    with semel.SharedTransaction.open(broker.bootstrap, key, token="one") as shared, shared.join() as writer:
        writer.send("pages", b"x").result()
        form = console.get("transaction/abort", key=key)
        assert console.send(form, "transaction/abort", {"sure": "yes"}, key=key).status == 200
    with semel.SharedTransaction.open(broker.bootstrap, key, token="two") as shared:
        with shared.join() as writer:
            writer.send("pages", b"x")
            assert console.send(form, "transaction/abort", {"sure": "yes"}, key=key).status == 409
            written = writer.finish()
        shared.commit([written])


def test_a_commit_token_is_looked_up(console: ConsoleClient, broker: Broker) -> None:
    with semel.Producer(broker.bootstrap, transactional_id="nightly") as producer:
        for token in ("monday", "tuesday"):
            with producer.transaction(token=token) as transaction:
                transaction.send("pages", b"x")
    assert "nightly" in console.get("token", token="tuesday").plain
    assert "the last token of no transactional id" in console.get("token", token="monday").plain
    found = console.get("token", key="nightly", token="monday")
    assert found.path.startswith("/console/transaction?")
    assert "token 'monday' was recorded as committed" in found.plain
    assert "'tuesday'" not in found.plain
    assert console.get("token", key="nightly", token="never").status == 404


def test_jobs_are_listed_with_what_they_committed_last(console: ConsoleClient, broker: Broker) -> None:
    for key, token in (("spark/q1/totals", "batch-1"), ("spark/q1/totals", "batch-2"), ("closing", "november")):
        with semel.SharedTransaction.open(broker.bootstrap, key, token=token) as shared:
            with shared.join() as writer:
                writer.send("pages", b"x")
                written = writer.finish()
            shared.commit([written], payload=b'{"end":["<%s>"]}' % token.encode())
    for name, token in (("semel.outbox/shop", ""), ("hourly", "nine"), ("no-token", "")):
        with (
            semel.Producer(broker.bootstrap, transactional_id=name) as producer,
            producer.transaction(token=token or None) as transaction,
        ):
            transaction.send("pages", b"x")
    with semel.SharedTransaction.open(broker.bootstrap, "spark/q1/totals", token="batch-3") as shared:
        with shared.join() as writer:
            writer.send("pages", b"x")
            writer.flush()
            page = console.get("jobs")
            assert re.search(r'q1/totals Spark batch-2 \S+ 1 batch-3 {"end":\["<batch-2>"\]}', page.plain)
        shared.abort()
    assert re.search(r'closing shared transactions november \S+ 1 - {"end":\["<november>"\]}', page.plain)
    assert re.search(r"hourly producer nine \S+ 1 - -", page.plain)
    assert re.search(r"shop outbox - - - - -", page.plain)
    assert "no-token" not in page.plain
    shown = [page.plain.index(name) for name in ("q1/totals", "hourly producer", "closing shared", "shop outbox")]
    assert shown == sorted(shown), "what is open, then what committed last"
    assert console.get("jobs", kind="Spark").plain.count("spark/") == 0, "the name without the prefix"
    assert "hourly" not in console.get("jobs", kind="Spark").plain
    assert "There is none of these." in console.get("jobs", filter="nobody's").plain
    assert console.get("jobs", kind="Flink").status == 400


def test_notes_of_commits_are_shown(console: ConsoleClient, admin: semel.Admin) -> None:
    place = semel.TopicPartition("pages", 0)
    admin.alter_group_offsets("noted", {place: semel.OffsetAndMetadata(3, metadata="written to <sqlite> shop.db")})
    assert "Note of the commit pages-0 3" in (shown := console.get("group", id="noted").plain)
    assert "written to <sqlite> shop.db" in shown


def test_a_shared_transaction_shows_its_writers(console: ConsoleClient, broker: Broker) -> None:
    with semel.SharedTransaction.open(broker.bootstrap, "day", token="d1") as shared:
        with shared.join() as writer:
            writer.send("pages", b"shared")
            writer.flush()
            page = console.get("transaction", key="day")
            assert "is open, for token d1" in page.plain
            assert re.search(r"__semel.shared/\S+ Ongoing", page.plain)
            form = console.get("transaction/abort", key="day")
            assert "with all that has written in it: 1 writer." in form.plain
            done = console.send(form, "transaction/abort", {"sure": "yes"}, key="day")
            assert "The transaction is aborted." in done.plain
            written = writer.finish()
        with pytest.raises(semel.FencedError):
            shared.commit([written])


# --- Access, and nodes that are away ----------------------------------------------------------------------------------


def test_without_an_authorizer_there_is_a_sentence(console: ConsoleClient) -> None:
    page = console.get("access")
    assert page.status == 200
    assert "ACLs" in page.plain


def test_a_node_that_is_away_is_a_sentence() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        with HttpGateway(broker.bootstrap, limits=replace(Limits(), page_s=0.3)) as gateway:
            console = ConsoleClient(gateway.address)
            assert console.get("").status == 200
            broker.kill()
            for path in ("", "topics", "records?topic=t", "groups", "transactions", "metrics"):
                page = console.get(path)
                assert page.status == 503
                assert "The cluster does not answer" in page.plain
                assert "Traceback" not in page.text


# --- Publishing -------------------------------------------------------------------------------------------------------


def test_one_record_is_published(console: ConsoleClient, broker: Broker, admin: semel.Admin) -> None:
    admin.create_topic("published", partitions=2)
    page = console.get("publish", topic="published")
    fields = {"partition": "1", "key": "k", "value": 'line 1\r\n{"é": 1}', "headers": "source: console\na:b:c"}
    done = console.send(page, "publish", fields, topic="published")
    assert "The record is published." in done.plain
    nothing = console.send(page, "publish", {"key": "", "no-value": "on", "partition": "1"}, topic="published")
    assert nothing.status == 200
    one, two = broker.records("published")
    assert (one.partition, one.key, one.value) == (1, b"k", 'line 1\n{"é": 1}'.encode())
    assert one.headers == (("source", b"console"), ("a", b"b:c"))
    assert (two.key, two.value) == (None, None)
    for wrong in ({"partition": "2"}, {"partition": "-1"}, {"headers": "no colon"}):
        assert console.send(page, "publish", wrong, topic="published").status == 400
    assert console.send(page, "publish", {"value": "x"}, topic="publishd").status == 404
    assert "publishd" not in [topic.name for topic in admin.topics()]


def test_the_gateways_own_user_looks_at_the_cluster_from_the_start_on(broker: Broker) -> None:
    with HttpGateway(broker.bootstrap) as gateway:
        sampler = gateway.gateway.shared(Console, lambda: pytest.fail("the gateway has no console")).sampler
        while "pages" not in sampler.sizes:
            time.sleep(0.01)
        assert sampler.trouble == ""
        assert sampler.sizes["pages"] > 0
