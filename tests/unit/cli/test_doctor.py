"""`semel doctor` and the commands that it names, against nodes in real trouble."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doctor_cluster_facts import three
from doctor_facts import HEALTHY_DISK
from live_node import LiveNode
from lost_markers import cut_last_batch
from running_node import SMALL
from typer.testing import CliRunner, Result

import semel
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import LoadedConfig
from semel.broker.diagnostics.snapshot import take_snapshot
from semel.broker.logs.last_recovery import NOTE_FILE
from semel.broker.node import Node
from semel.cli import doctor as command
from semel.cli.main import app
from semel.protocol.api.diagnostics import NodeFacts, Thresholds
from semel.protocol.batch_builder import encode_batch
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.sdk.diagnosis.findings import Cluster, Finding
from semel.sdk.diagnosis.rules import diagnose
from semel.txn_coordinator.schemas import encode_key

ROOMY = {"disk_min_free_bytes": 64 << 20}
PATIENCE_S = 20.0
OUT = TopicPartition("out", 0)


def run(node: LiveNode, *arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments), env={"SEMEL_BOOTSTRAP": node.bootstrap})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def found(node: LiveNode, **limits: int) -> dict[str, Finding]:
    """What the doctor finds, by kind; of several of a kind the first."""
    with semel.Admin(node.bootstrap) as admin:
        diagnosis = admin.diagnose(thresholds=Thresholds(**limits))
    kinds: dict[str, Finding] = {}
    for finding in diagnosis.findings:
        kinds.setdefault(finding.kind.name, finding)
    return kinds


def follow(node: LiveNode, text: str) -> Result:
    """Run a command that a finding names."""
    result = run(node, *shlex.split(text)[1:])
    assert result.exit_code == 0, (text, result.output)
    return result


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be so"
        time.sleep(0.02)


def committed(node: LiveNode, tp: TopicPartition) -> list[bytes | None]:
    """All that a read_committed reader sees of a partition now."""
    with semel.Admin(node.bootstrap) as admin:
        end = admin.list_offsets({tp: -1})[tp].offset
    values: list[bytes | None] = []
    with semel.Consumer(node.bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([tp])
        until(lambda: bool(_read(consumer, values)) or consumer.position(tp) >= end)
        while consumer.position(tp) < end:
            _read(consumer, values)
    return values


def _read(consumer: semel.Consumer, values: list[bytes | None]) -> bool:
    batch = consumer.poll(0.05)
    values += [] if batch is None else [record.value for record in batch]
    return batch is not None


@contextmanager
def left_open(node: LiveNode, transactional_id: str, **options: Any) -> Iterator[semel.Producer]:
    """A producer that has written into a transaction and does nothing more, as one that hangs."""
    producer = semel.Producer(node.bootstrap, transactional_id=transactional_id, client_id="stuck-job", **options)
    try:
        if options.get("two_phase"):
            producer.init_transactions(keep_prepared=True)
        producer.begin_transaction()
        producer.send("out", b"held", partition=0)
        producer.flush()
        yield producer
    finally:
        with suppress(semel.SemelError):
            producer.close(0)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with LiveNode(tmp_path_factory.mktemp("doctor"), transaction_two_phase_commit_enable=True, **ROOMY) as running:
        run(running, "topic", "create", "out", "--partitions", "1")
        run(running, "topic", "create", "in", "--partitions", "1")
        yield running


def test_who_holds_the_lso_is_named_and_the_command_ends_it(node: LiveNode) -> None:
    with left_open(node, "it's stuck"):
        held = found(node)["lso-held"]
        assert 'the transaction of "it\'s stuck"' in held.what
        assert "stuck-job at 127.0.0.1" in held.what
        assert "holds the last stable offset of out-0" in held.what
        assert "it times out at" in held.happens
        shown = run(node, "doctor", "--section", "transactions")
        assert shown.exit_code == 0, shown.output
        assert "INFO     lso-held: " in shown.stdout
        slow = found(node, slow_ms=0)["slow-transaction"]
        as_json = json.loads(run(node, "doctor", "--section", "transactions", "--slow-after", "0", "--json").stdout)
        (one,) = as_json["findings"]
        assert (one["kind"], one["severity"], one["commands"]) == ("slow-transaction", "warning", [*slow.commands])
        assert as_json["healthy"] is False
        assert run(node, "doctor", "--section", "transactions", "--slow-after", "0").exit_code == 1
        for text in slow.commands:
            follow(node, text)
    until(lambda: not {"lso-held", "slow-transaction", "markers-pending"} & set(found(node, slow_ms=0)))


def test_a_prepared_transaction_is_told_and_the_command_ends_it(node: LiveNode) -> None:
    with left_open(node, "two-phase", two_phase=True) as producer:
        producer.prepare_transaction()
        prepared = found(node, slow_ms=0)["prepared-transaction"]
        assert prepared.happens == "it never times out: its outside coordinator decides"
        assert "two-phase-enabled" in found(node)
        for text in prepared.commands:
            follow(node, text)
    until(lambda: "prepared-transaction" not in found(node))


def test_markers_that_are_not_through_are_told(node: LiveNode) -> None:
    partition = node.run(lambda: node.node.partition(OUT))
    with left_open(node, "half-way") as producer:
        node.run(partition.pause)
        producer.commit_transaction()
        until(lambda: "markers-pending" in found(node, markers_ms=0))
        pending = found(node, markers_ms=0)["markers-pending"]
        assert "its commit is decided" in pending.happens
        assert pending.what.endswith("not all markers are written in out-0")
        assert "commit was decided, as its producer asked" in follow(node, pending.commands[0]).stdout
        node.run(partition.resume)
        until(lambda: "markers-pending" not in found(node, markers_ms=0))


def test_a_transaction_that_timed_out_is_gone_and_its_story_says_why(node: LiveNode) -> None:
    with left_open(node, "too-late", transaction_timeout_ms=50):
        until(lambda: "timed" in run(node, "txn", "why", "too-late").stdout or "was over" in story(node, "too-late"))
        until(lambda: "complete: aborted" in story(node, "too-late"))
    assert "its time was over (timeout 50 ms), so abort was decided, and it was fenced" in story(node, "too-late")


def story(node: LiveNode, key: str) -> str:
    return run(node, "txn", "why", key).stdout


def test_a_shared_attempt_that_is_stuck_is_ended_by_its_key(node: LiveNode) -> None:
    shared = semel.SharedTransaction.open(node.bootstrap, "nightly", token="day 1")
    with shared.join() as writer:
        writer.send("out", b"x")
        writer.flush()
        slow = found(node, slow_ms=0)["slow-transaction"]
        assert "a writer of the shared transaction 'nightly'" in slow.what
        for text in slow.commands:
            follow(node, text)
    until(lambda: "slow-transaction" not in found(node, slow_ms=0))


def test_a_group_that_lags_and_one_that_nobody_reads_for(node: LiveNode) -> None:
    with semel.Producer(node.bootstrap) as producer:
        for number in range(9):
            producer.send("in", str(number).encode())
    with semel.Consumer(node.bootstrap, group="slow-readers", topics=["in"], offset_reset="earliest") as consumer:
        until(lambda: consumer.poll(0.1, 2) is not None)
        consumer.commit()
        lagging = found(node, lag_records=1)["group-lagging"]
        assert "group 'slow-readers' is 7 records behind, 7 of them in in-0" in lagging.what
        assert "Stable with 1 member" in lagging.what
        for text in lagging.commands:
            follow(node, text)
        assert "group-lagging" not in found(node)
        assert "group-lagging" in found(node, lag_ms=0)
    until(lambda: "group-without-members" in found(node))
    expiring = found(node, expiry_ms=30 * 86_400_000)["group-expiring"]
    assert "begin to be forgotten at" in expiring.happens
    for text in expiring.commands:
        follow(node, text)
    assert "group-without-members" not in found(node)


def test_a_group_that_rebalances_again_and_again(node: LiveNode) -> None:
    for _ in range(3):
        with semel.Consumer(node.bootstrap, group="restless", topics=["in"]) as consumer:
            until(lambda: bool(consumer.poll(0.05)) or bool(consumer.assignment()))
    restless = found(node, rebalances=3)["group-rebalancing"]
    assert restless.subject == "restless"
    with semel.Consumer(node.bootstrap, group="restless", topics=["in"]) as consumer:
        until(lambda: bool(consumer.poll(0.05)) or bool(consumer.assignment()))
        assert "restless is Stable, 1 member" in follow(node, restless.commands[0]).stdout
    assert "group-rebalancing" not in found(node, rebalances=99)


def test_what_topics_are_set_to_is_fixed_by_the_command(node: LiveNode) -> None:
    run(node, "topic", "create", "odd", "--config", "retention.ms=1000", "--config", "min.insync.replicas=2")
    kinds = found(node)
    assert {"retention-short", "min-insync-impossible"} <= set(kinds)
    for name in ("retention-short", "min-insync-impossible"):
        assert kinds[name].subject == "odd"
        follow(node, kinds[name].commands[0])
    assert not {"retention-short", "min-insync-impossible"} & set(found(node))


def test_sections_and_limits_bound_what_is_printed(node: LiveNode) -> None:
    for number in range(3):
        run(node, "topic", "create", f"short-{number}", "--config", "retention.ms=1000")
    shown = run(node, "doctor", "--section", "settings", "--limit", "1")
    assert shown.stdout.count("WARNING") == 1
    assert "more about settings (--limit)" in shown.stdout
    said = [line for line in shown.stdout.splitlines() if line.startswith(("  why", "  fix"))]
    assert said
    assert all(line[8] == " " != line[9] for line in said), "not in one column"
    assert json.loads(run(node, "doctor", "--section", "settings", "--limit", "1", "--json").stdout)["left_off"] >= 2
    assert run(node, "doctor", "--section", "nothing").exit_code == 2
    for number in range(3):
        run(node, "topic", "delete", f"short-{number}", "--yes")


def test_the_worst_is_printed_first_in_each_section_and_nodes_where_they_are_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spread = (NodeFacts(1), NodeFacts(2), NodeFacts(3, is_fenced=True))
    unclean = replace(HEALTHY_DISK, unclean_ms=1, unclean_found="y", write_error="x", sync_ms_recent=300.0)
    cluster = Cluster(three(nodes=spread, throttled_topics=("orders",), disk=unclean, leaders=90))

    @contextmanager
    def admin(*_: object, **__: object) -> Iterator[Any]:
        yield SimpleNamespace(diagnose=lambda thresholds: diagnose(cluster, thresholds))

    monkeypatch.setattr(command, "open_admin", admin)
    lines = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith(("ERROR", "WARNING", "INFO"))] == [
        "ERROR    node-fenced",
        "WARNING  throttle-left",
        "INFO     leaders-skewed",
        "ERROR    writes-failing (node 1)",
        "WARNING  fsync-slow (node 1)",
        "INFO     unclean-start (node 1)",
    ]


def test_commands_name_the_node_where_it_is_not_the_usual_one(node: LiveNode) -> None:
    with left_open(node, "elsewhere"):
        shown = CliRunner().invoke(
            app, ["doctor", "--slow-after", "0", "--json", "--bootstrap", node.bootstrap], env={"SEMEL_BOOTSTRAP": None}
        )
        commands = [text for one in json.loads(shown.stdout)["findings"] for text in one["commands"]]
        assert f"semel txn abort elsewhere --yes --bootstrap {node.bootstrap}" in commands
        run(node, "txn", "abort", "elsewhere", "--yes")


def test_finish_leaves_alone_what_is_open_or_was_never_there(node: LiveNode) -> None:
    with left_open(node, "at-work"):
        refused = run(node, "txn", "finish", "at-work", "--yes")
        assert refused.exit_code == 1
        assert "at-work is not finished: unless it ends before, it times out at" in refused.stderr
        assert "`semel txn abort at-work --yes`" in refused.stderr
        assert '"Ongoing"' in run(node, "txn", "describe", "at-work", "--json").stdout
        run(node, "txn", "abort", "at-work", "--yes")
    unknown = run(node, "txn", "finish", "nobody")
    assert (unknown.exit_code, "the log has nothing about 'nobody'" in unknown.stderr) == (1, True)
    for wrong in ((), ("x", "--partition", "out:0"), ("--partition", "out:0")):
        assert run(node, "txn", "finish", *wrong).exit_code == 2


def test_the_asyncio_client_has_the_same_calls(node: LiveNode) -> None:
    async def ask() -> tuple[bool, int]:
        async with semel.aio.Admin(node.bootstrap) as admin:
            diagnosis = await admin.diagnose(thresholds=Thresholds(slow_ms=1), limit=5)
            history = await admin.transaction_history("nobody", limit=1)
            with pytest.raises(semel.FatalError, match="no transaction that begins at offset 77"):
                await admin.abort_hanging_transaction(OUT, 77)
            for wrong in (0, 1_001):
                with pytest.raises(semel.UsageError, match="option limit must be"):
                    await admin.diagnose(limit=wrong)
            return diagnosis.is_healthy, history.events_total

    assert asyncio.run(ask()) == (found_is_healthy(node), 0)


def found_is_healthy(node: LiveNode) -> bool:
    with semel.Admin(node.bootstrap) as admin:
        return admin.diagnose(thresholds=Thresholds(slow_ms=1), limit=5).is_healthy


def test_no_node_is_another_exit_code() -> None:
    assert CliRunner().invoke(app, ["doctor", "--bootstrap", "127.0.0.1:1"]).exit_code == 3


# --- Nodes that are damaged -------------------------------------------------------------------------------------------


def test_a_transaction_hangs_once_its_coordinator_has_lost_its_log(tmp_path: Path) -> None:
    node = LiveNode(tmp_path, **ROOMY)
    node.start()
    try:
        run(node, "topic", "create", "out", "--partitions", "1")
        with semel.Producer(node.bootstrap) as producer:
            producer.send("out", b"before")
        with left_open(node, "lost"):
            refused = run(node, "txn", "abort", "--partition", "out:0", "--start-offset", "1", "--yes")
            assert "does not hang: it is that of 'lost'" in refused.stderr
            node.stop()
        lost = list((tmp_path / "data").glob(f"{TRANSACTIONS_TOPIC}-*"))
        for folder in lost:
            shutil.rmtree(folder)
        node.start(accept_loss_of=[TopicPartition(TRANSACTIONS_TOPIC, number) for number in range(len(lost))])
        with semel.Producer(node.bootstrap) as producer:
            producer.send("out", b"after")
        hanging = found(node)["hanging-transaction"]
        assert hanging.happens == "nothing: it stays until somebody ends it"
        assert committed(node, OUT) == [b"before"]
        wrong = run(node, "txn", "abort", "--partition", "out:0", "--start-offset", "0", "--yes")
        assert "no transaction that begins at offset 0 is open on out-0" in wrong.stderr
        declined = CliRunner().invoke(
            app, shlex.split(hanging.commands[0])[1:-1], "n\n", {"SEMEL_BOOTSTRAP": node.bootstrap}
        )
        assert declined.exit_code == 1
        assert "no coordinator knows the transaction at offset 1 of out:0" in declined.stderr
        assert "will never be read" in declined.stdout
        refused = run(node, *shlex.split(hanging.commands[0])[1:], "--as", "commit")
        assert "is known to no coordinator" in refused.stderr
        assert "hanging-transaction" in found(node)
        for text in hanging.commands:
            assert text.startswith("semel txn finish ")
            assert "of producer" in follow(node, text).stdout
        assert "hanging-transaction" not in found(node)
        assert committed(node, OUT) == [b"before", b"after"]
        assert run(node, "txn", "why", "lost").exit_code == 1, "the log was lost, so there is no story"
    finally:
        node.stop()


@pytest.mark.parametrize("commits", [True, False])
def test_T3_T7_a_decided_transaction_that_has_lost_a_marker_is_ended_as_it_was_decided(
    tmp_path: Path, commits: bool
) -> None:
    """The doctor advised to abort it, and the abort was done: half of a committed transaction was gone."""
    credit = TopicPartition("pay", 1)
    node = LiveNode(tmp_path, **ROOMY)
    node.start()
    try:
        run(node, "topic", "create", "pay", "--partitions", "2")
        with semel.Producer(node.bootstrap, transactional_id="pay") as producer:
            producer.begin_transaction()
            producer.send("pay", b"debit", partition=0)
            producer.send("pay", b"credit", partition=1)
            producer.flush()
            producer.commit_transaction() if commits else producer.abort_transaction()
        until(lambda: "all partitions have its markers" in run(node, "txn", "why", "pay").stdout)
        node.stop()
        cut_last_batch(tmp_path / "data" / "pay-1")
        node.start()
        (missing,) = [one for one in found(node).values() if one.kind.name in ("marker-missing", "hanging-transaction")]
        assert missing.kind.name == "marker-missing"
        told = run(node, "txn", "why", "pay").stdout
        assert "but the marker is gone from pay-1" in told
        assert "$ semel txn finish --partition pay:1 --start-offset 0 --yes" in told
        place = ("--partition", "pay:1", "--start-offset", "0", "--yes")
        for wrong in (("abort",), ("finish", "--as", "abort"), ("finish", "--as", "commit")):
            refused = run(node, "txn", wrong[0], *place, *wrong[1:])
            assert refused.exit_code == 1
            assert f"its {'commit' if commits else 'abort'} is decided" in refused.stderr
        assert committed(node, TopicPartition("pay", 0)) == ([b"debit"] if commits else [])
        for text in missing.commands if commits else ("semel txn finish pay",):
            assert f"is {'committed' if commits else 'aborted'}" in follow(node, text).stdout
        assert "marker-missing" not in found(node)
        assert committed(node, credit) == ([b"credit"] if commits else [])
        assert run(node, "txn", "finish", "pay").stdout == "no partition lacks a marker of pay\n"
        assert "all partitions have its markers" in run(node, "txn", "why", "pay").stdout
    finally:
        node.stop()


def test_usage_of_abort_is_told(node: LiveNode) -> None:
    assert run(node, "txn", "abort", "--yes").exit_code == 2
    assert run(node, "txn", "abort", "a", "--partition", "out:0", "--start-offset", "1").exit_code == 2
    assert run(node, "txn", "abort", "--partition", "out:0").exit_code == 2
    assert run(node, "txn", "abort", "--partition", "nowhere:0", "--start-offset", "1", "--yes").exit_code == 1


def test_a_coordinator_that_cannot_be_read_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    """`txn list` refused as a whole."""
    node = LiveNode(tmp_path, **ROOMY)
    node.start()
    try:
        run(node, "topic", "create", "out", "--partitions", "1")
        ids = [f"id-{number}" for number in range(6)]
        for name in ids:
            with semel.Producer(node.bootstrap, transactional_id=name) as producer, producer.transaction():
                producer.send("out", b"x")
        # As a newer version may have written it before somebody went back to this one.
        newer = bytearray(encode_batch([(0, encode_key("newer"), b"\x00\x63", ())]))
        broken = TopicPartition(TRANSACTIONS_TOPIC, 0)
        node.run(lambda: node.node.partition(broken).append_batch(newer))
        node.stop()
        node.start()
        there = [name for name in ids if node.node.transactions.partition_for(name) != 0]
        assert 0 < len(there) < len(ids)
        listed = run(node, "txn", "list", "--json")
        assert listed.exit_code == 1
        assert [one["transactional_id"] for one in json.loads(listed.stdout)] == there
        assert "__transaction_state-0 can't be read" in listed.stderr
        kinds = found(node)
        unreadable = kinds["coordinator-unreadable"]
        assert "has version 99" in unreadable.what
        follow_verify = run(node, *shlex.split(unreadable.commands[0])[1:])
        assert follow_verify.exit_code in (0, 1), follow_verify.output
        assert run(node, "doctor").exit_code == 1
        away = next(name for name in ids if name not in there)
        shown = run(node, "txn", "why", away).stdout
        assert "complete: committed" in shown, "the log is read up to where it is broken"
        assert "its coordinator can't work now" in shown
    finally:
        node.stop()


def test_groups_are_listed_as_far_as_they_can_be_read(tmp_path: Path) -> None:
    """`group list` refused as a whole."""
    node = LiveNode(tmp_path, **ROOMY)
    node.start()
    try:
        run(node, "topic", "create", "in", "--partitions", "1")
        names = [f"group-{number}" for number in range(6)]
        for name in names:
            run(node, "group", "reset-offsets", name, "--topic", "in", "--to", "latest", "--create", "--yes")
        assert [one["group"] for one in json.loads(run(node, "group", "list", "--json").stdout)] == names
        # A group's record of a version that this one does not know.
        newer = bytearray(encode_batch([(0, b"\x00\x02\x00\x01g", b"\x00\x63", ())]))
        node.run(lambda: node.node.partition(TopicPartition(OFFSETS_TOPIC, 0)).append_batch(newer))
        node.stop()
        node.start()
        there = [name for name in names if node.node.groups.offsets_partition(name).partition != 0]
        assert 0 < len(there) < len(names)
        listed = run(node, "group", "list", "--json")
        assert (listed.exit_code, [one["group"] for one in json.loads(listed.stdout)]) == (1, there)
        assert f"{OFFSETS_TOPIC}-0 can't be read" in listed.stderr
        assert found(node)["coordinator-unreadable"].what.startswith("the coordinator of groups can't read")
    finally:
        node.stop()


def test_a_coordinator_whose_directory_vanished_is_told_with_the_commands_that_bring_it_back(tmp_path: Path) -> None:
    """Its section said nothing, and the holder that it knew was told of without a next step."""
    node = LiveNode(tmp_path, transaction_state_log_num_partitions=1, **ROOMY)
    node.start()
    try:
        run(node, "topic", "create", "out", "--partitions", "1")
        with left_open(node, "who"):
            node.stop()
        data = tmp_path / "data"
        shutil.rmtree(data / f"{TRANSACTIONS_TOPIC}-0")
        node.start()
        kinds = found(node)
        assert "__transaction_state-0 can't be asked" in kinds["unknown-holder"].what
        shown = run(node, *shlex.split(kinds["unknown-holder"].commands[0])[1:]).stdout
        assert "coordinator-unreadable: the coordinator of transactions can't use __transaction_state-0" in shown
        accept = f"semel serve --data-dir {data} --accept-loss-of __transaction_state:0"
        assert accept in shown
        assert accept in kinds["partition-vanished"].commands
        node.stop()
        node.start(accept_loss_of=[TopicPartition(TRANSACTIONS_TOPIC, 0)])
        kinds = found(node)
        assert "unknown-holder" not in kinds
        for text in kinds["hanging-transaction"].commands:
            assert follow(node, text).exit_code == 0
        assert "hanging-transaction" not in found(node)
    finally:
        node.stop()


def test_a_holder_is_not_called_hanging_while_a_coordinator_cannot_be_asked(tmp_path: Path) -> None:
    node = LiveNode(tmp_path, transaction_state_log_num_partitions=1, **ROOMY)
    node.start()
    try:
        run(node, "topic", "create", "out", "--partitions", "1")
        with left_open(node, "who"):
            newer = bytearray(encode_batch([(0, encode_key("newer"), b"\x00\x63", ())]))
            tp = TopicPartition(TRANSACTIONS_TOPIC, 0)
            node.run(lambda: node.node.partition(tp).append_batch(newer))
            node.stop()
        node.start()
        kinds = found(node)
        assert "hanging-transaction" not in kinds
        follow_up = run(node, *shlex.split(kinds["unknown-holder"].commands[0])[1:])
        assert "coordinator-unreadable" in follow_up.stdout
        refused = run(node, "txn", "abort", "--partition", "out:0", "--start-offset", "0", "--yes")
        assert refused.exit_code != 0
        assert "fix that first" in refused.stderr
    finally:
        node.stop()


def test_a_full_disk_is_told_with_what_takes_the_room(tmp_path: Path) -> None:
    with LiveNode(tmp_path, disk_min_free_bytes=1 << 60) as node:
        run(node, "topic", "create", "large", "--partitions", "1")
        full = found(node)["disk-full"]
        assert "producers are refused" in full.what
        assert "producers are served again once 1153433.6 TiB are free" in full.happens
        with semel.Producer(node.bootstrap, delivery_timeout_ms=300) as producer:
            producer.send("large", b"x")
            with pytest.raises(semel.SemelError):
                producer.flush()
        assert not full.commands, "to delete its records would not be enough"


ENDANGERED = {
    "durability": "os",
    "offsets_retention_minutes": 60,
    "transaction_max_timeout_ms": 7_200_000,
    "transactional_id_expiration_ms": 60_000,
    "producer_id_expiration_ms": 60_000,
    "commit_history_expiration_ms": 60_000,
    "transaction_two_phase_commit_enable": True,
    "disk_min_free_bytes": 0,
}


def test_settings_that_endanger_exactly_once_are_fixed_by_the_commands(tmp_path: Path) -> None:
    with LiveNode(tmp_path / "wrong", **ENDANGERED) as node:
        wrong = [one for one in found(node).values() if one.kind.section.value == "settings"]
    assert {one.subject.replace(".", "_") for one in wrong} == set(ENDANGERED)
    begin = ["semel", "serve", "--data-dir", str(tmp_path / "wrong" / "data")]
    assert all(shlex.split(one.commands[0])[:4] == begin for one in wrong)
    words = [word for one in wrong for word in shlex.split(one.commands[0])[4:]]
    shown = CliRunner().invoke(app, ["serve", *words, "--settings"])
    assert shown.exit_code == 0, shown.output
    fixed: dict[str, Any] = {}
    for name, value in (word.split("=") for word in words if word != "--set"):
        was = ENDANGERED[name.replace(".", "_")]
        fixed[name.replace(".", "_")] = value == "true" if isinstance(was, bool) else type(was)(value)
    with LiveNode(tmp_path / "fixed", **fixed) as node:
        assert [one for one in found(node).values() if one.kind.section.value == "settings"] == []


def test_the_commands_name_the_configuration_file_that_the_node_was_started_with(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {**SMALL, "data_dir": str(tmp_path / "data"), "durability": "os"}
        node = await Node.start(LoadedConfig(NodeConfig(**settings), {}, file="/etc/semel.toml"))
        diagnosis = diagnose(Cluster((await take_snapshot(node),)))
        await node.stop()
        (command,) = [text for one in diagnosis.findings for text in one.commands if "durability" in text]
        assert command == f"semel serve --config /etc/semel.toml --data-dir {tmp_path}/data --set durability=disk"

    asyncio.run(main())


def test_a_start_after_a_crash_is_remembered_over_clean_ones(tmp_path: Path) -> None:
    with LiveNode(tmp_path / "first", **ROOMY) as node:
        run(node, "topic", "create", "out", "--partitions", "1")
        assert "unclean-start" not in found(node)
        with semel.Producer(node.bootstrap) as producer:
            producer.send("out", b"x")
        # What a kill leaves behind: the folder as it is at this moment.
        shutil.copytree(tmp_path / "first", tmp_path / "crashed", ignore=shutil.ignore_patterns("*.lock", ".lock"))
    for said in ("this start found", "an earlier start found"):
        with LiveNode(tmp_path / "crashed", **ROOMY) as node:
            unclean = found(node)["unclean-start"]
            assert said in unclean.what
            assert "recovered after a crash" in unclean.what
            verified = run(node, *shlex.split(unclean.commands[0])[1:])
            assert verified.exit_code == 0, verified.output
    (tmp_path / "crashed" / "data" / NOTE_FILE).write_text("no JSON")
    with LiveNode(tmp_path / "crashed", **ROOMY) as node:
        assert "unclean-start" not in found(node), "what is only told must not keep a node from starting"


def test_offsets_of_groups_that_hang_are_freed(tmp_path: Path) -> None:
    """O2: a fetch of stable offsets is refused for as long as a transaction that nobody knows has them pending."""
    node = LiveNode(tmp_path, **ROOMY)
    node.start()
    try:
        run(node, "topic", "create", "in", "--partitions", "1")
        run(node, "topic", "create", "out", "--partitions", "1")
        with semel.Producer(node.bootstrap) as producer:
            producer.send("in", b"x")
        with left_open(node, "lost") as producer:
            producer.send_offsets({TopicPartition("in", 0): 1}, semel.GroupMetadata("g"))
            node.stop()
        lost = list((tmp_path / "data").glob(f"{TRANSACTIONS_TOPIC}-*"))
        for folder in lost:
            shutil.rmtree(folder)
        node.start(accept_loss_of=[TopicPartition(TRANSACTIONS_TOPIC, number) for number in range(len(lost))])
        hanging = found(node)["hanging-transaction"]
        assert OFFSETS_TOPIC in hanging.what
        assert "It keeps offsets of groups pending" in hanging.what
        for text in hanging.commands:
            follow(node, text)
        assert "hanging-transaction" not in found(node)
        with semel.Admin(node.bootstrap) as admin:
            assert admin.group_offsets("g") == {}
    finally:
        node.stop()
