"""The rules of `semel doctor` with made-up facts: each kind of finding, and what is none."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_acl_facts import ACL_CASES
from doctor_cluster_facts import CLUSTER_CASES
from doctor_facts import (
    GIB,
    GROUP,
    HEALTHY_DISK,
    HELD,
    HOUR,
    MINUTE,
    NODE,
    NOW,
    SETTINGS,
    T0,
    TOPIC,
    TXN,
    settings_with,
)
from typer.testing import CliRunner

from semel.broker.diagnostics.snapshot import TOLD_SETTINGS
from semel.cli.main import app
from semel.protocol.api.diagnostics import (
    NEVER,
    CoordinatorPartition,
    ForgedMarker,
    HeldPartition,
    NodeSnapshot,
    OfflinePartition,
    OwnedToken,
    RemoteTrouble,
    Section,
    Severity,
    Thresholds,
)
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.plain_messages import from_message, to_message
from semel.protocol.v1 import diagnostics_pb2
from semel.sdk.diagnosis.findings import KINDS, Cluster, Finding
from semel.sdk.diagnosis.rules import diagnose, unresolved_producers

PAGE = Path(__file__).parents[4] / "docs" / "doctor.md"


def findings(*nodes: NodeSnapshot, unreachable: dict[int, str] | None = None, **limits: int) -> list[Finding]:
    return list(diagnose(Cluster(nodes, unreachable or {}), Thresholds(**limits)).findings)


def the_one(*nodes: NodeSnapshot, **options: Any) -> Finding:
    (found,) = findings(*nodes, **options)
    return found


def node(**changed: Any) -> NodeSnapshot:
    return replace(NODE, **changed)


def disk(**changed: Any) -> NodeSnapshot:
    return node(disk=replace(HEALTHY_DISK, **changed))


def with_txn(held: tuple[HeldPartition, ...] = (HELD,), **changed: Any) -> NodeSnapshot:
    return node(transactions=(replace(TXN, **changed),), transactions_total=1, held=held, held_total=len(held))


OVERSIZED = replace(HELD, high_watermark=2_000_000)
UNREADABLE = CoordinatorPartition(TRANSACTIONS_TOPIC, 3, "the batch at offset 9 is broken")
LAG: dict[str, Any] = {"lag": 500, "worst": T0, "worst_lag": 400}

CASES: dict[str, tuple[Severity, NodeSnapshot]] = {
    "coordinator-unreadable": (Severity.ERROR, node(coordinators_away=(UNREADABLE,))),
    "coordinator-loading": (
        Severity.INFO,
        node(coordinators_away=(CoordinatorPartition(OFFSETS_TOPIC, 3),)),
    ),
    "lso-held": (Severity.INFO, with_txn()),
    "slow-transaction": (Severity.WARNING, with_txn(start_ms=NOW - 2 * MINUTE)),
    "prepared-transaction": (Severity.WARNING, with_txn(timeout_ms=NEVER, start_ms=NOW - 2 * MINUTE)),
    "markers-pending": (
        Severity.ERROR,
        with_txn(
            state="PrepareCommit",
            last_update_ms=NOW - MINUTE,
            marker_attempts=7,
            marker_error="1 partitions have no marker yet",
        ),
    ),
    "hanging-transaction": (Severity.ERROR, node(held=(replace(HELD, is_known=False),), held_total=1)),
    "marker-missing": (
        Severity.ERROR,
        node(held=(replace(HELD, is_known=False, outcome="commit", transactional_id="pay"),), held_total=1),
    ),
    "forged-marker": (
        Severity.WARNING,
        node(forged=(ForgedMarker(T0, 7, 1, 2**31 - 1, 0, NOW - HOUR, "pay"),), forged_total=1),
    ),
    "group-lagging": (
        Severity.WARNING,
        node(groups=(replace(GROUP, **LAG, unread_since_ms=NOW - 10 * MINUTE),)),
    ),
    "group-rebalancing": (
        Severity.WARNING,
        node(groups=(replace(GROUP, rebalances_ms=tuple(NOW - each * 1000 for each in (9, 8, 7, 6, 5))),)),
    ),
    "group-expiring": (
        Severity.WARNING,
        node(groups=(replace(GROUP, **LAG, state="Empty", members=0, expires_ms=NOW + HOUR),)),
    ),
    "group-without-members": (
        Severity.INFO,
        node(groups=(replace(GROUP, **LAG, state="Empty", members=0, expires_ms=NOW + 100 * HOUR),)),
    ),
    "partition-offline": (Severity.ERROR, node(offline=(OfflinePartition(T0, "the disk failed"),))),
    **{
        f"partition-{name}": (Severity.ERROR, node(offline=(OfflinePartition(T0, "gone", kind.replace("-", " ")),)))
        for name, kind in (
            *(("not-made", "not-made"), ("unreadable", "unreadable")),
            *(("damaged", "damaged"), ("vanished", "vanished")),
        )
    },
    "partition-skewed": (Severity.INFO, node(topics=(replace(TOPIC, largest_bytes=3 * GIB),))),
    "disk-full": (Severity.ERROR, disk(free_bytes=1 << 20)),
    "disk-filling": (Severity.WARNING, disk(free_bytes=5 * GIB)),
    "writes-failing": (Severity.ERROR, disk(write_error="No space left on device")),
    "maintenance-failing": (
        Severity.ERROR,
        disk(maintenance_error="could not flush the logs: No space left on device"),
    ),
    "remote-storage-failing": (
        Severity.ERROR,
        node(
            remote_storage="s3://bucket",
            remote_troubles=(RemoteTrouble(TopicPartition("t", 0), "could not copy a segment of t-0: access denied"),),
            remote_troubles_total=3,
            remote_bytes_to_copy=5 << 20,
        ),
    ),
    "fsync-slow": (Severity.WARNING, disk(sync_ms_recent=300.0)),
    "journal-large": (Severity.WARNING, disk(journal_bytes=2 * GIB - 1)),
    "records-damaged": (
        Severity.ERROR,
        disk(damaged_ms=NOW - HOUR, damage="orders-0: offset 300 unreadable"),
    ),
    "unclean-start": (Severity.INFO, disk(unclean_ms=NOW - HOUR, unclean_found="3 partitions, recovered")),
    "anonymous-access": (Severity.INFO, node(settings=settings_with(kafka_listen="0.0.0.0:9092"))),
    "durability-os": (Severity.WARNING, node(settings=settings_with(durability="os"))),
    "min-insync-impossible": (Severity.WARNING, node(topics=(replace(TOPIC, min_insync_replicas=2),))),
    "retention-short": (Severity.WARNING, node(topics=(replace(TOPIC, retention_ms=MINUTE),))),
    "offsets-retention-short": (Severity.WARNING, node(settings=settings_with(offsets_retention_minutes="60"))),
    "transaction-timeout-long": (
        Severity.WARNING,
        node(settings=settings_with(transaction_max_timeout_ms=str(24 * HOUR))),
    ),
    "transactional-id-expiration-short": (
        Severity.WARNING,
        node(settings=settings_with(transactional_id_expiration_ms="60000")),
    ),
    "producer-id-expiration-short": (
        Severity.WARNING,
        node(settings=settings_with(producer_id_expiration_ms="60000")),
    ),
    "commit-history-short": (Severity.WARNING, node(settings=settings_with(commit_history_expiration_ms="60000"))),
    "two-phase-enabled": (
        Severity.INFO,
        node(settings=settings_with(transaction_two_phase_commit_enable="true")),
    ),
    "token-without-user": (
        Severity.INFO,
        node(
            delegation_secret_mark="ab",
            tokens_without_user=(OwnedToken("t1", "User:carl"), OwnedToken("t2", "User:carl")),
            tokens_without_user_total=2,
        ),
    ),
    "no-disk-reserve": (Severity.WARNING, node(settings=settings_with(disk_min_free_bytes="0"))),
}
"""One node's facts in which exactly this is to be found."""
ABOUT_TOPICS = ("min-insync-impossible", "retention-short", "token-without-user")
"""What is about no node: several may tell of it."""


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_found_alone(name: str) -> None:
    severity, facts = CASES[name]
    found = the_one(facts)
    assert (found.kind.name, found.severity) == (name, severity)
    assert found.node_id == (-1 if name in ABOUT_TOPICS else 1)
    assert diagnose(Cluster((facts,))).is_healthy is (severity is Severity.INFO)


def test_every_kind_has_its_case() -> None:
    elsewhere = {"node-unreachable", "unknown-holder", "oversized-transaction", "leaders-skewed"}  # tested below
    assert {*CASES, *elsewhere, *CLUSTER_CASES, *ACL_CASES} == set(KINDS)


def test_every_setting_that_a_rule_looks_at_is_told() -> None:
    assert set(SETTINGS) <= set(TOLD_SETTINGS)


def test_a_healthy_node_has_no_findings() -> None:
    assert findings(NODE) == []
    assert findings(node(groups=(replace(GROUP, **LAG),), transactions=(TXN,))) == []


@pytest.mark.parametrize("name", CASES)
def test_each_command_is_one_that_there_is(name: str) -> None:
    """With --help in place of doing it; that it fixes is tested against a node."""
    runner = CliRunner()
    for text in the_one(CASES[name][1]).commands:
        words = shlex.split(text)
        assert words[0] == "semel"
        shown = runner.invoke(app, [*words[1:], "--help"])
        assert shown.exit_code == 0, (text, shown.output)
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert all(option in shown.output for option in options), (text, shown.output)


# --- Whose, since when, and what will happen --------------------------------------------------------------------------


def test_the_holder_is_named_with_client_and_deadline() -> None:
    found = the_one(CASES["slow-transaction"][1])
    assert found.what == (
        "the transaction of 'enrich-0' (producer 7, epoch 3, enricher at 10.0.0.7) is open for 2 min 0 s, and holds "
        "the last stable offset of orders-0 at 100; 20 committed records wait"
    )
    assert found.since_ms == NOW - 2 * MINUTE
    assert re.fullmatch(r"it times out at \S+ \(in 13 min 0 s\), and is aborted then", found.happens)
    assert found.commands == ("semel txn why enrich-0", "semel txn abort enrich-0 --yes")


def test_a_writer_of_a_shared_transaction_is_aborted_by_its_key() -> None:
    writer = "__semel.shared/it's mine/7"
    found = the_one(with_txn(transactional_id=writer, key="it's mine", attempt="a1", start_ms=NOW - HOUR))
    assert "a writer of the shared transaction \"it's mine\", attempt 'a1'" in found.what
    assert shlex.split(found.commands[1]) == ["semel", "txn", "abort", "it's mine", "--shared", "--yes"]
    assert "about to be aborted" in found.happens


def test_prepared_transactions_never_end_by_themselves() -> None:
    young = the_one(with_txn(timeout_ms=NEVER))
    assert (young.severity, young.kind.name) == (Severity.INFO, "prepared-transaction")
    assert young.happens == "it never times out: its outside coordinator decides"


def test_pending_markers_say_what_was_tried() -> None:
    found = the_one(CASES["markers-pending"][1])
    assert "its commit is decided" in found.happens
    assert "tried 7 times, 1 partitions have no marker yet" in found.happens
    untold = the_one(with_txn(state="PrepareCommit", last_update_ms=NOW - MINUTE, marker_attempts=1))
    assert untold.happens.endswith("; tried 1 time"), "no error is mentioned where there is none"
    waiting = the_one(with_txn(state="PrepareAbort", last_update_ms=NOW - MINUTE))
    assert waiting.severity is Severity.WARNING
    assert "tried" not in waiting.happens


@pytest.mark.parametrize("held", [(), (HELD,)])
def test_markers_of_a_young_decision_are_on_their_way(held: tuple[HeldPartition, ...]) -> None:
    assert findings(with_txn(held=held, state="PrepareAbort", last_update_ms=NOW - 106)) == []
    assert findings(with_txn(held=held, state="PrepareAbort", last_update_ms=NOW - 10_000)) == []


def test_a_partition_that_several_replicas_tell_of_is_named_once() -> None:
    """And what waits there is counted once, by the replica that has the most."""
    leader = with_txn(start_ms=NOW - 2 * MINUTE)
    behind = replace(HELD, high_watermark=110, is_known=False)
    follower = replace(NODE, node_id=2, topics=(), leaders=0, held=(behind,), held_total=1)
    found = {one.kind.name: one for one in findings(follower, leader)}["slow-transaction"]
    assert found.what.endswith("holds the last stable offset of orders-0 at 100; 20 committed records wait")
    lost = replace(HELD, is_known=False)
    nodes = [replace(NODE, node_id=each, topics=(), held=(lost,), held_total=1) for each in (1, 2)]
    hanging = {one.kind.name: one for one in findings(*nodes)}["hanging-transaction"]
    assert len(hanging.commands) == 1
    assert hanging.what.startswith("producer 7 (epoch 3) holds the last stable offset of orders-0 at 100 for")


def test_a_transaction_past_a_short_timeout_is_slow() -> None:
    assert the_one(with_txn(timeout_ms=1_000)).kind.name == "slow-transaction"


def test_an_oversized_transaction_is_told_besides() -> None:
    kinds = [found.kind.name for found in findings(with_txn(held=(OVERSIZED,)))]
    assert sorted(kinds) == ["lso-held", "oversized-transaction"]
    assert "oversized-transaction" in {one.kind.name for one in findings(with_txn(partitions_total=5_000))}


# --- Hanging, or only not known ---------------------------------------------------------------------------------------


def test_a_hanging_transaction_gets_a_command_for_each_partition() -> None:
    other = replace(HELD, partition=TopicPartition("a b", 2), first_offset=5, is_known=False)
    found = the_one(node(held=(replace(HELD, is_known=False), other)))
    assert found.commands == (
        "semel txn finish --partition orders:0 --start-offset 100 --yes",
        "semel txn finish --partition 'a b:2' --start-offset 5 --yes",
    )
    assert found.happens == "nothing: it stays until somebody ends it"


def test_T3_T7_a_decided_transaction_without_its_marker_is_finished_and_not_aborted() -> None:
    """A committed transaction was torn by the abort that the doctor advised."""
    lost = replace(HELD, is_known=False, outcome="commit", transactional_id="pay")
    found = the_one(node(held=(lost,)))
    assert "the commit of 'pay' is decided, and the marker is missing there" in found.what
    assert found.commands == ("semel txn finish --partition orders:0 --start-offset 100 --yes",)
    found = the_one(node(held=(replace(lost, outcome="unknown"),)))
    assert "its coordinator's log does not tell any more" in found.what
    assert found.commands == ("semel txn why pay",)
    unread = the_one(node(held=(replace(lost, outcome="unknown", transactional_id=""),)))
    assert unread.kind.name == "unknown-holder"


def test_some_forged_markers_are_named_and_all_are_counted() -> None:
    """Of a transactions' topic that was lost and made again all producers look like that: other findings drowned."""
    forged = tuple(ForgedMarker(T0, number, 1, 9, 0, NOW - HOUR, "") for number in range(50))
    found = findings(node(forged=forged, forged_total=54))
    assert [one.kind.name for one in found] == ["forged-marker"] * 3
    assert all("(54 such producers in total)" in one.what for one in found)
    assert "--accept-metadata-loss" in found[0].kind.why


def test_offsets_that_hang_are_told_of() -> None:
    found = the_one(node(held=(replace(HELD, is_known=False, partition=TopicPartition(OFFSETS_TOPIC, 1)),)))
    assert "It keeps offsets of groups pending" in found.what


def test_a_holder_that_an_unreadable_coordinator_may_know_does_not_hang() -> None:
    facts = node(held=(replace(HELD, is_known=False),), coordinators_away=(UNREADABLE,))
    assert [one.kind.name for one in findings(facts)] == ["coordinator-unreadable", "unknown-holder"]
    facts = node(held=(replace(HELD, is_known=False),))
    kinds = [one.kind.name for one in findings(facts, unreachable={2: "connection refused"})]
    assert kinds == ["node-unreachable", "unknown-holder"]
    elsewhere = node(
        held=(replace(HELD, is_known=False),), coordinators_away=(replace(UNREADABLE, topic=OFFSETS_TOPIC),)
    )
    assert "hanging-transaction" in [one.kind.name for one in findings(elsewhere)]


@pytest.mark.parametrize("topic", [TRANSACTIONS_TOPIC, OFFSETS_TOPIC])
@pytest.mark.parametrize("told_away", [False, True])
def test_a_coordinators_partition_that_is_offline_is_told_in_both_sections(topic: str, told_away: bool) -> None:
    tp = TopicPartition(topic, 3)
    away = (CoordinatorPartition(topic, 3, "offline"),) if told_away else ()
    facts = node(offline=(OfflinePartition(tp, "it is gone", "vanished"),), coordinators_away=away)
    coordinator, partition = findings(facts)
    assert (coordinator.kind.name, partition.kind.name) == ("coordinator-unreadable", "partition-vanished")
    assert f"can't use {tp}, which is offline: it is gone" in coordinator.what
    assert coordinator.commands == partition.commands


def test_commands_that_start_a_node_have_its_data_directory_and_configuration_file() -> None:
    """They started another node, in the default directory, with the default settings."""
    facts = node(offline=(OfflinePartition(T0, "gone", "vanished"),), settings=settings_with(durability="os"))
    for config, expected in (("", ""), ("/etc/semel/it's.toml", "--config '/etc/semel/it'\"'\"'s.toml' ")):
        commands = [one for finding in findings(replace(facts, config_file=config)) for one in finding.commands]
        assert [one for one in commands if one.startswith("semel serve")] == [
            f"semel serve {expected}--data-dir /var/lib/semel --accept-loss-of orders:0",
            f"semel serve {expected}--data-dir /var/lib/semel --set durability=disk",
        ]


def test_a_holder_that_another_node_coordinates_does_not_hang() -> None:
    held_here = node(held=(replace(HELD, is_known=False),))
    coordinator = replace(NODE, node_id=2, transactions=(TXN,), transactions_total=1)
    cluster = Cluster((held_here, coordinator))
    assert unresolved_producers(Cluster((held_here,))) == {7}
    assert unresolved_producers(cluster) == frozenset()
    (found,) = diagnose(cluster).findings
    assert (found.kind.name, found.node_id) == ("lso-held", 2)
    assert "orders-0 at 100" in found.what
    without = replace(coordinator, transactions=(replace(TXN, partitions=(TopicPartition("x", 0),)),))
    assert "hanging-transaction" in [one.kind.name for one in findings(held_here, without)]


# --- Several nodes, thresholds, order ---------------------------------------------------------------------------------


def test_a_node_that_leads_most_is_told() -> None:
    busy, idle, other = node(leaders=90), replace(NODE, node_id=2, leaders=5), replace(NODE, node_id=3, leaders=5)
    found = the_one(busy, idle, other)
    assert (found.kind.name, found.severity, found.subject) == ("leaders-skewed", Severity.INFO, "node 1")
    assert found.commands == ("semel partition elect --all", "semel cluster balance --dry-run")
    for text in found.commands:
        assert CliRunner().invoke(app, [*shlex.split(text)[1:], "--help"]).exit_code == 0
    alone = node(leaders=1), replace(NODE, node_id=2, leaders=0), replace(NODE, node_id=3, leaders=0)
    assert findings(*alone) == [], "one partition can't be spread"
    assert findings(node(leaders=50), replace(NODE, node_id=2, leaders=50)) == []


def test_thresholds_move_the_line() -> None:
    group = replace(GROUP, **LAG)
    assert findings(node(groups=(group,))) == []
    assert the_one(node(groups=(group,)), lag_records=499).kind.name == "group-lagging"
    assert the_one(with_txn(), slow_ms=1_000).kind.name == "slow-transaction"
    old = tuple(NOW - HOUR - each for each in range(9))
    assert findings(node(groups=(replace(GROUP, rebalances_ms=old),))) == []


def test_a_group_that_has_no_members_any_more_is_no_warning_for_its_rebalances() -> None:
    group = replace(GROUP, rebalances_ms=tuple(NOW - each * 1000 for each in (9, 8, 7, 6, 5)))
    assert the_one(node(groups=(group,))).severity is Severity.WARNING
    empty = the_one(node(groups=(replace(group, state="Empty", members=0),)))
    assert (empty.kind.name, empty.severity) == ("group-rebalancing", Severity.INFO)
    assert "Empty with 0 members" in empty.what
    assert empty.happens == "nothing while it has no members"


def test_slow_syncs_need_enough_of_them() -> None:
    assert findings(disk(syncs=5, slow_syncs=1)) == []
    assert the_one(disk(syncs=100, slow_syncs=2)).kind.name == "fsync-slow"


def test_an_unclean_start_with_durability_os_is_a_warning() -> None:
    found = findings(disk(unclean_ms=NOW - HOUR, unclean_found="x", durability="os"))
    assert [one.severity for one in found] == [Severity.WARNING]


def test_a_disk_that_cannot_be_asked_is_passed_over() -> None:
    assert findings(disk(free_bytes=-1, total_bytes=-1)) == []


def test_producers_that_are_refused_with_more_than_the_reserve_free_are_an_error() -> None:
    """Refused once, they wait for a tenth more than the reserve."""
    refused = the_one(disk(free_bytes=270 << 20, is_refusing=True, resume_bytes=282 << 20))
    assert (refused.kind.name, refused.severity) == ("disk-full", Severity.ERROR)
    assert refused.what.startswith("270.0 MiB of 100.0 GiB are free in /var/lib/semel, and producers are refused")
    assert refused.happens == "producers are served again once 282.0 MiB are free; transactions still end"
    earlier = the_one(disk(free_bytes=1 << 20))
    assert "once 256.0 MiB are free" in earlier.happens, "a node of an earlier version tells no more"


def test_less_retention_is_proposed_only_where_that_makes_room() -> None:
    """It deletes records, on all nodes: not where something else fills the disk."""
    full = replace(HEALTHY_DISK, free_bytes=1 << 20, is_refusing=True, resume_bytes=282 << 20)
    assert the_one(node(disk=full)).commands == ("semel topic config orders --set retention.bytes=536870912",)
    small = replace(TOPIC, size_bytes=100 << 20, largest_bytes=25 << 20)
    assert the_one(node(disk=full, topics=(small,))).commands == ()


def test_findings_come_by_section_the_worst_first() -> None:
    facts = node(
        coordinators_away=(UNREADABLE,),
        transactions=(TXN, replace(TXN, transactional_id="b", producer_id=8, start_ms=NOW - HOUR)),
        held=(HELD,),
        disk=replace(HEALTHY_DISK, write_error="x", unclean_ms=1, unclean_found="y"),
    )
    order = [(one.kind.section, one.severity) for one in findings(facts)]
    assert order == [
        (Section.COORDINATORS, Severity.ERROR),
        (Section.TRANSACTIONS, Severity.WARNING),
        (Section.TRANSACTIONS, Severity.INFO),
        (Section.DISK, Severity.ERROR),
        (Section.DISK, Severity.INFO),
    ]


# --- What goes over the wire, and the page ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_facts_survive_the_wire(name: str) -> None:
    facts = CASES[name][1]
    data = to_message(facts, diagnostics_pb2.NodeSnapshot()).SerializeToString()
    assert from_message(diagnostics_pb2.NodeSnapshot.FromString(data), NodeSnapshot) == facts


def test_the_page_has_every_finding() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for kind in KINDS.values():
        assert f"`{kind.name}`" in text, kind.name
        assert kind.why in text, kind.name
        assert kind.fix in text, kind.name
    assert [name for name in re.findall(r"#### `([a-z-]+)`", text) if name not in KINDS] == []


def test_of_several_listeners_each_is_looked_at() -> None:
    items = "default=127.0.0.1:1,external=0.0.0.0:2"
    found = the_one(node(settings=settings_with(kafka_listeners=items, kafka_listen="[::]:3")))
    assert found.kind.name == "anonymous-access"
    assert found.what.startswith("kafka.listeners: external is 0.0.0.0:2, and everybody")


def test_a_listener_asks_for_certificates_as_it_says_itself() -> None:
    strict, lax = (f"?advertised=h:1&ssl.client.auth={auth}" for auth in ("required", "none"))
    items = f"a=tls://0.0.0.0:1{strict},b=tls://0.0.0.0:2,c=tls://0.0.0.0:3{lax}"
    found = the_one(node(settings=settings_with(kafka_listeners=items)))
    assert found.what.startswith("kafka.listeners: b is tls://0.0.0.0:2 and kafka.listeners: c is tls://0.0.0.0:3, and")
    found = the_one(node(settings=settings_with(kafka_listeners=items, ssl_client_auth="required")))
    assert found.what.startswith("kafka.listeners: c is tls://0.0.0.0:3, and")


def test_a_listener_without_a_name_is_the_default_one_and_older_nodes_are_not_judged() -> None:
    older = tuple(each for each in settings_with() if not each.name.endswith("listeners"))
    default, named = (settings_with(kafka_listeners=f"{name}=127.0.0.1:1") for name in ("DEFAULT", "internal"))

    def kinds(*settings: Any) -> list[str]:
        nodes = (node(node_id=number, settings=each) for number, each in enumerate(settings, 1))
        return [one.kind.name for one in findings(*nodes) if one.kind.name == "listener-missing"]

    assert kinds(default, settings_with()) == []
    assert kinds(named, older) == []
    assert kinds(named, settings_with()) == ["listener-missing"] * 2
