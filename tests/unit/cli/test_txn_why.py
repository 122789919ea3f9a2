"""`semel txn why`: what the log has about a transaction, who took part, and what is said of what it no longer has."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import pytest
from live_node import LiveNode
from typer.testing import CliRunner, Result

import semel
from semel.cli.main import app
from semel.protocol.api.diagnostics import NEVER, TransactionEvent, TransactionHistory, TransactionWrite
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.sdk.diagnosis.story import Story, tell

OUT = TopicPartition("out", 0)
STATE = TopicPartition(TRANSACTIONS_TOPIC, 0)
T = 1_800_000_000_000
PATIENCE_S = 20.0


def run(node: LiveNode, *arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments), env={"SEMEL_BOOTSTRAP": node.bootstrap})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def sentences(node: LiveNode, *arguments: str) -> list[str]:
    """The story's lines without the title and the times."""
    shown = run(node, "txn", "why", *arguments)
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()[1:]
    return [line[28:] if line.startswith("  20") else line for line in lines]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be so"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with LiveNode(tmp_path_factory.mktemp("why"), transaction_state_log_num_partitions=1) as running:
        for topic in ("in", "out", "more"):
            run(running, "topic", "create", topic, "--partitions", "1")
        yield running


def test_a_pipelines_transaction_from_its_beginning_to_its_markers(node: LiveNode) -> None:
    with semel.Producer(node.bootstrap, transactional_id="enrich-0", client_id="enricher") as producer:
        with producer.transaction(token="day 1", sequence=4, payload=b"abc") as txn:
            txn.send("out", b"x")
            producer.flush()
            txn.send("more", b"y")
            producer.flush()
            producer.send_offsets({TopicPartition("in", 0): 7}, semel.GroupMetadata("readers"))
        until(lambda: "complete" in sentences(node, "enrich-0")[-2])
        story = sentences(node, "enrich-0")
    text = "\n".join(story)
    title = run(node, "txn", "why", "enrich-0").stdout.splitlines()[0]
    assert title.startswith("'enrich-0', from __transaction_state-0 of node 1 (offsets 0 to ")
    assert title.endswith("; data has its records' time, by the producer's clock")
    assert story[0].startswith("initialised by enricher at 127.0.0.1 (producer ")
    assert "epoch 0, timeout 1 min 0 s) in out-0\n  out-0: data at offset 0\n" in text
    assert "added more-0\n  more-0: data at offset 0\n" in text
    assert "  group 'readers': offset 7 of in-0, pending until the marker\n" in text
    assert "token 'day 1' was recorded as committed, sequence 4, payload of 3 bytes\n" in text
    assert "commit was decided, as its producer asked, after " in text
    assert "(epoch 1 from here on)" in text
    assert f"  {OFFSETS_TOPIC}-" in text
    assert ", which published its offsets\n" in text
    assert "  out-0: commit marker at offset 1\n" in text
    assert story[-2:] == [
        "complete: committed, and all partitions have its markers",
        "next: nothing is open: nothing will happen before it is used again",
    ]
    by_token = sentences(node, "enrich-0", "--token", "day 1")
    assert by_token[0].startswith("a transaction began")
    assert by_token[-2:] == ["next: token 'day 1' is committed, for good", "  $ semel txn commits enrich-0"]
    assert run(node, "txn", "why", "enrich-0", "--token", "day 9").exit_code == 1


def test_who_aborted_it_is_in_the_log(node: LiveNode) -> None:
    with semel.Producer(node.bootstrap, transactional_id="fought-over", client_id="first") as first:
        first.begin_transaction()
        first.send("out", b"x")
        first.flush()
        open_story = sentences(node, "fought-over")
        assert open_story[-2].startswith("next: unless it ends before, it times out at ")
        assert open_story[-1] == "  $ semel txn abort fought-over --yes"
        with semel.Producer(node.bootstrap, transactional_id="fought-over", client_id="second") as second:
            second.begin_transaction()
            second.send("out", b"y")
            second.flush()
            run(node, "txn", "abort", "fought-over", "--yes")
            until(lambda: "nothing is open" in sentences(node, "fought-over")[-1])
            text = "\n".join(sentences(node, "fought-over"))
            with pytest.raises(semel.FencedError):
                second.commit_transaction()
        with pytest.raises(semel.FencedError):
            first.commit_transaction()
    assert "fenced by second at 127.0.0.1, which took its place, so abort was decided, after" in text
    assert "initialised by second at 127.0.0.1" in text
    assert "an operator (semel at 127.0.0.1) aborted it, and fenced its producer, after" in text
    assert text.count("abort marker at offset") == 2


def test_kafkas_clients_are_named_too(node: LiveNode) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": str(node.node.kafka_address),
            "transactional.id": "librdkafka-0",
            "client.id": "billing",
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("out", b"x")
    producer.commit_transaction(30)
    text = "\n".join(sentences(node, "librdkafka-0"))
    assert "initialised by billing at 127.0.0.1" in text
    assert "commit was decided, as its producer asked" in text


def test_a_shared_transaction_tells_of_all_its_writers(node: LiveNode) -> None:
    shared = semel.SharedTransaction.open(node.bootstrap, "import", token="day 1", sequence=1)
    with shared.join() as kept, shared.join() as lost:
        for writer in (kept, lost):
            writer.send("out", b"x")
            writer.flush()
        assert f"attempt {shared.attempt!r} is open, with 2 writers that wrote" in sentences(node, "import")[-2]
        assert sentences(node, "import")[-1] == "  $ semel txn abort import --shared --yes"
        shared.commit([kept.finish()])
    until(lambda: sentences(node, "import")[-1].startswith("next: nothing is open"))
    text = "\n".join(sentences(node, "import"))
    assert f"attempt {shared.attempt!r} was opened, for token 'day 1', sequence 1" in text
    assert f"token 'day 1' was recorded as committed for attempt {shared.attempt!r}, 1 writer, sequence 1" in text
    assert text.count(": initialised by semel at 127.0.0.1") == 2
    assert "which took its place, so abort was decided" in text
    assert text.count("forgotten: nothing of it is left in the coordinator") == 2
    by_token = sentences(node, "import", "--token", "day 1")
    assert "next: token 'day 1' is committed, for good" in by_token
    with semel.SharedTransaction.open(node.bootstrap, "import", token="day 2").join() as writer:
        writer.send("out", b"x")
        writer.flush()
        assert any(
            line.startswith("next: token 'day 2' is not committed. attempt")
            for line in sentences(node, "import", "--token", "day 2")
        )
        run(node, "txn", "abort", "import", "--shared", "--yes")


def test_steps_are_bounded_and_json_has_the_facts(node: LiveNode) -> None:
    with semel.Producer(node.bootstrap, transactional_id="long") as producer:
        for _ in range(4):
            with producer.transaction():
                producer.send("out", b"x")
    found = json.loads(run(node, "txn", "why", "long", "--limit", "3", "--json").stdout)
    assert len(found["events"]) == 3
    assert "older steps are left off here (--limit)" in found["not_known"][0]
    assert found["coordinator_node"] == 1
    assert found["steps"][-1]["text"].startswith(("complete", "commit was decided", "out-0: commit marker"))
    assert run(node, "txn", "why", "long", "--limit", "0").exit_code == 2
    nothing = run(node, "txn", "why", "nobody")
    assert nothing.exit_code == 1
    assert "the log has nothing about 'nobody'" in nothing.stderr


def test_what_compaction_has_taken_away_is_said(tmp_path: Path) -> None:
    settings = {"transaction_state_log_segment_bytes": 400, "log_cleaner_min_cleanable_ratio": 0.0}
    with LiveNode(tmp_path, transaction_state_log_num_partitions=1, log_index_interval_bytes=0, **settings) as node:
        run(node, "topic", "create", "out", "--partitions", "1")
        with semel.Producer(node.bootstrap, transactional_id="old", client_id="elder") as producer:
            for _ in range(8):
                with producer.transaction():
                    producer.send("out", b"x")
            before = json.loads(run(node, "txn", "why", "old", "--json").stdout)

            async def compact() -> int:
                await node.node.logs.maintenance.flush()
                return await node.node.logs.maintenance.compact_logs()

            until(lambda: node.run(compact) > 0)
            after = json.loads(run(node, "txn", "why", "old", "--json").stdout)
    assert before["compacted_to"] == 0
    assert 0 < len(after["events"]) < len(before["events"])
    assert any("the log is compacted" in gap for gap in after["not_known"])
    assert any("of a step that the log no longer has: out-0: commit marker" in step["text"] for step in after["steps"])
    assert after["events"][-1]["client_id"] == "elder"


# --- Sentences, from made-up records ----------------------------------------------------------------------------------


def event(offset: int, state: str, **changed: object) -> TransactionEvent:
    made = TransactionEvent(
        offset,
        T + offset,
        "transaction",
        "id",
        state,
        producer_id=7,
        producer_epoch=0,
        timeout_ms=60_000,
        start_ms=T,
        partitions=(OUT,) if state == "Ongoing" else (),
        partitions_total=1 if state == "Ongoing" else 0,
    )
    return replace(made, **changed)


def told(*events: TransactionEvent, writes: tuple[TransactionWrite, ...] = (), **changed: object) -> Story:
    history = TransactionHistory("id", STATE, 1, T + 1_000, 0, 99, 0, events, len(events), writes)
    return tell(replace(history, **changed))


def test_records_without_a_client_are_told_as_they_are() -> None:
    """Written by an earlier version, or by Kafka."""
    (step,) = told(event(0, "Empty")).steps
    assert step.text.startswith("initialised by a client that the log does not name")


def test_decisions_say_why() -> None:
    def decided(**changed: object) -> str:
        return told(event(0, "Ongoing"), event(1, "PrepareAbort", producer_epoch=1, **changed)).steps[1].text

    assert decided().startswith("abort was decided, as its producer asked, after 1 ms (epoch 1")
    assert decided(cause="request", by_client_id="b", by_host="h").startswith("abort was decided, as b at h asked")
    assert decided(cause="fence").startswith("fenced, so abort was decided")
    assert decided(cause="timeout").startswith("its time was over (timeout 1 min 0 s)")
    assert decided(cause="operator", by_host="h").startswith("an operator (a client at h) aborted it")


def test_prepared_and_decided_transactions_have_their_future() -> None:
    prepared = told(event(0, "Ongoing", timeout_ms=NEVER))
    assert prepared.outlook == "it stays open until its outside coordinator decides: it never times out"
    assert prepared.commands == ("semel txn abort id --yes",)
    taken_over = told(event(0, "Ongoing", timeout_ms=NEVER), event(1, "Ongoing", timeout_ms=NEVER)).steps[1]
    assert "as it is (KIP-939)" in taken_over.text
    decided = told(event(0, "Ongoing"), event(1, "PrepareCommit", producer_epoch=1))
    assert decided.outlook.startswith("its commit is decided")
    overdue = told(event(0, "Ongoing", start_ms=T - 100_000))
    assert "it is about to be aborted" in overdue.outlook


def test_what_is_not_known_is_said() -> None:
    story = told(
        event(5, "CompleteCommit"),
        log_start_offset=3,
        compacted_to=5,
        read_error="the batch at offset 9 is broken",
        writes_cut=True,
        coordinator_error="it can't be read",
        events_total=4,
    )
    assert len(story.gaps) == 6
    assert told(event(0, "Ongoing"), coordinator_error="x").commands == ("semel doctor --section coordinators",)


def test_writes_stand_with_their_transaction_and_others_apart() -> None:
    mine = TransactionWrite(OUT, 7, 0, "data", 10, 12, T)
    marker = TransactionWrite(OUT, 7, 1, "abort", 13, 13, T + 5)
    earlier = TransactionWrite(OUT, 6, 0, "commit", 2, 2, T - 9)
    story = told(
        event(0, "Ongoing"),
        event(1, "PrepareAbort", producer_epoch=1, partitions=(OUT,), partitions_total=1),
        writes=(mine, marker, earlier),
    )
    assert [step.has_record_time for step in story.steps] == [False, True, False, False, False]
    assert "records' time" not in told(event(0, "Ongoing"), writes=(marker,)).title
    assert [step.text for step in story.steps][1:] == [
        "  out-0: data at offsets 10 to 12",
        "abort was decided, as its producer asked, after 1 ms (epoch 1 from here on)",
        "  out-0: abort marker at offset 13",
        "in a partition, of a step that the log no longer has: out-0: commit marker at offset 2",
    ]


def test_a_token_that_was_forgotten_is_not_called_committed() -> None:
    commit = TransactionEvent(0, T, "commit", token="t")
    gone = TransactionEvent(1, T, "forgotten", token="t")
    history = TransactionHistory("id", STATE, 1, T, 0, 9, 0, (commit, gone), 2)
    assert "would not be recognised" in tell(history, "t").outlook
    assert tell(history, "other").outlook == "token 'other' is not committed, as far as the log goes back"
