"""Committed and pending offsets on the group machine: fencing, transactions, expiry, deletion, restart, compaction."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_driver import (
    GROUP,
    GroupDriver,
    LogEntry,
    commit,
    compacted,
    fetch,
    replayed,
)

from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.deletion import DELETED_AT_ONCE_MAX, GROUP_AT_ONCE_MAX
from semel.group_coordinator.records.schemas import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_offset_value,
    encode_offset_key,
    offset_record,
    offset_record_size_bytes,
    record_size_bytes,
)
from semel.group_coordinator.requests import BeginVerification, TopicsDeleted, VerifiedCommit
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import DeleteGroupRequest, DeleteGroupResponse, FetchedOffset, OffsetDeleteRequest
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.schema import Writer
from semel.runtime.machine import CoordinatorRecord

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
OTHER = TopicPartition("returns", 0)
PRODUCER = ProducerIdAndEpoch(4001, 3)
RIVAL = ProducerIdAndEpoch(4002, 0)
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def offset(driver: GroupDriver, partition: TopicPartition, **kwargs: object) -> int:
    return int(driver.ask(fetch(partition, **kwargs)).offsets[partition].offset)  # type: ignore[arg-type]


def error(driver: GroupDriver, partition: TopicPartition) -> ErrorCode:
    code = driver.ask(fetch(partition)).offsets[partition].error
    assert isinstance(code, ErrorCode)
    return code


# --- Committing -------------------------------------------------------------------------------------------------------


def test_simple_consumer_commits_without_a_group() -> None:
    driver = GroupDriver()
    assert driver.ask(commit({P0: 7, P1: 8})).errors == {P0: ErrorCode.NONE, P1: ErrorCode.NONE}
    assert driver.ask(fetch(P0, P2)).offsets == {
        P0: FetchedOffset(7, -1, ""),
        P2: FetchedOffset(-1, -1, ""),
    }
    assert set(driver.ask(fetch()).offsets) == {P0, P1}
    assert driver.ask(fetch(group="nobody")).offsets == {}


def test_commit_keeps_leader_epoch_metadata_and_timestamp() -> None:
    driver = GroupDriver()
    request = replace(commit({}), offsets={P0: OffsetAndMetadata(5, 9, "note", 1234)})
    driver.ask(request)
    assert driver.ask(fetch(P0)).offsets[P0] == FetchedOffset(5, 9, "note")
    driver.reload()
    assert driver.ask(fetch(P0)).offsets[P0] == FetchedOffset(5, 9, "note")


@pytest.mark.parametrize(
    ("partition", "value", "code"),
    [
        (P0, OffsetAndMetadata(1, metadata="é" * 2049), ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (P0, OffsetAndMetadata(-1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (TopicPartition("", 0), OffsetAndMetadata(1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicPartition("x" * 250, 0), OffsetAndMetadata(1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicPartition("orders", -1), OffsetAndMetadata(1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_bad_offset_is_refused_and_the_others_are_kept(
    partition: TopicPartition, value: OffsetAndMetadata, code: ErrorCode
) -> None:
    driver = GroupDriver()
    answer = driver.ask(replace(commit({}), offsets={partition: value, P2: OffsetAndMetadata(1)}))
    assert answer.errors == {partition: code, P2: ErrorCode.NONE}
    assert set(driver.ask(fetch()).offsets) == {P2}


def test_commit_too_large_for_one_batch_is_refused_whole() -> None:
    driver = GroupDriver(GroupConfig(group_records_max_bytes=1_000))
    many = {TopicPartition("orders", number): 1 for number in range(100)}
    assert driver.refusal(commit(many)) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert not driver.log


@pytest.mark.parametrize("producer", [None, PRODUCER])
def test_O4_zombies_are_fenced(producer: ProducerIdAndEpoch | None) -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2, instances=True)
    returned = driver.ask(driver.join_request(instance="instance-1"))
    good = commit(
        {P0: 1},
        generation=leader.generation_id,
        member_id=returned.member_id,
        instance="instance-1",
        producer=producer,
    )
    assert driver.refusal(replace(good, generation_id=1)) is ErrorCode.ILLEGAL_GENERATION
    assert driver.refusal(replace(good, generation_id=3)) is ErrorCode.ILLEGAL_GENERATION
    assert driver.refusal(replace(good, member_id=follower.member_id)) is ErrorCode.FENCED_INSTANCE_ID
    assert driver.refusal(replace(good, group_instance_id="nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
    unknown = replace(good, group_instance_id=None, member_id="nobody")
    assert driver.refusal(unknown) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.refusal(replace(unknown, group_id="other")) is ErrorCode.ILLEGAL_GENERATION
    before = len(driver.log)
    driver.ask(good)
    assert len(driver.log) == before + 1


def test_O4_commit_without_a_member_needs_an_empty_group() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group()
    assert driver.refusal(commit({P0: 1})) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.ask(commit({P0: 1}, producer=PRODUCER))  # TxnOffsetCommit before version 3 cannot name the member
    driver.ask(driver.leave(member.member_id))
    driver.ask(commit({P0: 2}))
    assert offset(driver, P0, require_stable=False) == 2


def test_O4_member_of_the_last_generation_is_fenced_once_the_next_begins() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    old = commit({P0: 1}, generation=1, member_id=first.member_id, producer=PRODUCER)
    _, ticket = driver.begin_join()
    driver.ask(old)  # the rebalance has not ended: it may finish its work
    driver.call(driver.join_request(first.member_id))
    assert driver.joined(ticket).generation_id == 2
    assert driver.refusal(old) is ErrorCode.ILLEGAL_GENERATION


def test_commit_while_the_assignment_is_awaited() -> None:
    driver = GroupDriver()
    member_id, ticket = driver.begin_join()
    generation = driver.joined(ticket).generation_id
    plain = commit({P0: 1}, generation=generation, member_id=member_id)
    assert driver.refusal(plain) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.ask(replace(plain, transactional_id="txn", producer=PRODUCER))


# --- Transactions -----------------------------------------------------------------------------------------------------


def test_O1_offsets_wait_for_their_marker() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 1}))
    driver.ask(commit({P0: 5, P1: 6}, producer=PRODUCER))
    assert offset(driver, P0, require_stable=False) == 1
    assert offset(driver, P1, require_stable=False) == -1
    driver.marker(PRODUCER, committed=True)
    assert (offset(driver, P0), offset(driver, P1)) == (5, 6)


def test_O1_abort_marker_drops_them() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 1}))
    driver.ask(commit({P0: 5, P1: 6}, producer=PRODUCER))
    driver.marker(PRODUCER, committed=False)
    assert driver.ask(fetch()).offsets == {P0: FetchedOffset(1, -1, "")}


def test_O1_marker_publishes_the_last_of_several_commits_in_every_group() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 5}, producer=PRODUCER))
    driver.ask(commit({P0: 6}, producer=PRODUCER))
    driver.ask(commit({P0: 9}, producer=PRODUCER, group="other"))
    driver.marker(PRODUCER, committed=True)
    assert offset(driver, P0) == 6
    assert offset(driver, P0, group="other") == 9
    assert driver.machine.durable_state()["pending"] == {}
    assert driver.machine.durable_state()["pending counts"] == {}


def test_O1_later_record_wins_whenever_its_marker_comes() -> None:
    """Compaction keeps the last record of a key, so replay must, too."""
    driver = GroupDriver()
    driver.ask(commit({P0: 5}, producer=PRODUCER))
    driver.ask(commit({P0: 7}))
    driver.marker(PRODUCER, committed=True)
    assert offset(driver, P0) == 7
    driver.ask(commit({P0: 8}, producer=PRODUCER))
    driver.ask(commit({P0: 9}, producer=RIVAL))
    driver.marker(RIVAL, committed=True)
    driver.marker(PRODUCER, committed=True)
    assert offset(driver, P0) == 9
    assert replayed(compacted(driver.log)).durable_state() == driver.machine.durable_state()


def test_O1_deletion_drops_pending_offsets_too() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 1}))
    driver.ask(commit({P0: 5, P1: 6}, producer=PRODUCER))
    driver.ask(OffsetDeleteRequest(GROUP, (P0,)))
    driver.marker(PRODUCER, committed=True)
    assert driver.ask(fetch()).offsets == {P1: FetchedOffset(6, -1, "")}


def test_O1_deleted_group_stays_deleted_when_the_marker_comes() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 5}, producer=PRODUCER))
    driver.ask(DeleteGroupRequest(GROUP))
    driver.marker(PRODUCER, committed=True)
    assert driver.machine.group(GROUP) is None
    assert driver.ask(fetch()).offsets == {}
    assert driver.machine.durable_state()["pending counts"] == {}


@pytest.mark.parametrize("reloads", [False, True])
def test_O1_an_aborted_transaction_of_two_groups_shows_nothing(reloads: bool) -> None:
    """A pipeline may commit what it read for two groups; a commit publishes both, too."""
    driver = GroupDriver()
    groups = (GROUP, "other")
    for group in groups:
        driver.ask(commit({P0: 1}, group=group))
    for committed, expected in ((False, 1), (True, 7)):
        for group in groups:
            driver.ask(commit({P0: 7, P1: 8}, group=group, producer=PRODUCER))
        if reloads:
            driver.reload()
        driver.marker(PRODUCER, committed=committed)
        for group in groups:
            found = driver.ask(fetch(P0, P1, group=group)).offsets
            assert [found[each].offset for each in (P0, P1)] == [expected, 8 if committed else -1], group
    assert driver.machine.durable_state()["pending"] == {}
    assert driver.machine.durable_state()["pending counts"] == {}


@pytest.mark.parametrize("keep_tombstones", [True, False])
def test_O1_restart_and_compaction_bring_back_the_same(keep_tombstones: bool) -> None:
    driver = GroupDriver()
    [member] = driver.stable_group()
    for number in range(20):
        driver.ask(commit({P0: number, P1: number}, generation=1, member_id=member.member_id))
        driver.ask(commit({P1: 100 + number}, producer=PRODUCER, generation=1, member_id=member.member_id))
        driver.marker(PRODUCER, committed=number % 3 == 0)
    driver.ask(commit({OTHER: 3}, generation=1, member_id=member.member_id))
    driver.ask(OffsetDeleteRequest(GROUP, (OTHER,)))
    driver.ask(commit({P2: 1}, producer=RIVAL))
    expected = driver.machine.durable_state()
    assert replayed(driver.log).durable_state() == expected
    short = compacted(driver.log, keep_tombstones=keep_tombstones)
    assert sum(entry.record is not None for entry in short) <= 5
    assert replayed(short).durable_state() == expected
    driver.reload(short)
    assert error(driver, P2) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    driver.marker(RIVAL, committed=True)
    assert offset(driver, P2) == 1


def test_O2_unstable_partitions_are_named_one_by_one() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 1, P1: 1}))
    driver.ask(commit({P1: 2}, producer=PRODUCER))
    driver.ask(commit({P1: 3}, producer=RIVAL))
    answer = driver.ask(fetch(P0, P1)).offsets
    assert (answer[P0].error, answer[P1].error) == (ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert answer[P1].offset == -1
    assert driver.ask(fetch(P1, require_stable=False)).offsets[P1].offset == 1
    driver.marker(PRODUCER, committed=True)
    assert error(driver, P1) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    driver.marker(RIVAL, committed=False)
    assert offset(driver, P1) == 2


def test_O2_fetch_of_all_names_partitions_that_are_only_pending() -> None:
    driver = GroupDriver()
    driver.ask(commit({P1: 2}, producer=PRODUCER))
    assert driver.ask(fetch()).offsets[P1].error is ErrorCode.UNSTABLE_OFFSET_COMMIT


def test_records_of_a_transactional_commit_go_into_its_transaction() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 1}, producer=PRODUCER))
    assert [entry.producer for entry in driver.log] == [PRODUCER]
    driver.ask(replace(commit({}), offsets={P0: OffsetAndMetadata(-5)}, producer=PRODUCER))
    assert len(driver.log) == 1, "nothing to keep, nothing in the transaction"


def test_T8_commit_verified_before_a_marker_is_refused_after_it() -> None:
    driver = GroupDriver()
    guard = driver.ask(BeginVerification(PRODUCER))
    assert driver.ask(BeginVerification(PRODUCER)) == guard
    driver.marker(PRODUCER, committed=False)
    late = VerifiedCommit(commit({P0: 1}, producer=PRODUCER), guard)
    assert driver.refusal(late) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    guard = driver.ask(BeginVerification(PRODUCER))
    driver.ask(VerifiedCommit(commit({P0: 1}, producer=PRODUCER), guard))
    assert driver.ask(BeginVerification(PRODUCER)) is None, "the transaction is known to be open now"
    driver.ask(VerifiedCommit(commit({P1: 1}, producer=PRODUCER), None))
    assert driver.ask(BeginVerification(ProducerIdAndEpoch(4001, 4))) is not None, "not under another epoch"


def test_T8_a_guard_of_a_former_coordinator_is_no_guard_of_this_one() -> None:
    """The marker may have come to the former one, or to another node's."""
    driver = GroupDriver()
    guard = driver.ask(BeginVerification(PRODUCER))
    driver.reload()
    assert driver.ask(BeginVerification(PRODUCER)) != guard
    late = VerifiedCommit(commit({P0: 1}, producer=PRODUCER), guard)
    assert driver.refusal(late) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# --- Expiry (KIP-211) -------------------------------------------------------------------------------------------------


def retention(minutes: int = 60) -> GroupConfig:
    return GroupConfig(offsets_retention_minutes=minutes, offsets_retention_check_interval_ms=5 * MINUTE_MS)


def test_simple_groups_offsets_expire_by_their_commit() -> None:
    driver = GroupDriver(retention())
    driver.ask(commit({P0: 1}))
    driver.advance(30 * MINUTE_MS)
    driver.ask(commit({P1: 1}))
    driver.advance(29 * MINUTE_MS)
    assert set(driver.ask(fetch()).offsets) == {P0, P1}
    driver.advance(6 * MINUTE_MS)
    assert set(driver.ask(fetch()).offsets) == {P1}
    driver.advance(30 * MINUTE_MS)
    assert driver.machine.group(GROUP) is None
    assert driver.machine.next_deadline_ms() is None


def test_groups_offsets_expire_after_it_was_empty_for_the_retention() -> None:
    driver = GroupDriver(retention())
    [member] = driver.stable_group()
    driver.ask(commit({P0: 1}, generation=1, member_id=member.member_id))
    for _ in range(30):
        driver.advance(5_000)
        driver.ask(driver.heartbeat(member))
    driver.ask(driver.leave(member.member_id))
    driver.advance(59 * MINUTE_MS)
    assert offset(driver, P0) == 1
    driver.advance(6 * MINUTE_MS)
    assert driver.machine.group(GROUP) is None
    driver.reload(compacted(driver.log, keep_tombstones=False))
    assert driver.machine.group(GROUP) is None


def test_subscribed_topics_do_not_expire_and_others_do() -> None:
    driver = GroupDriver(retention())
    [member] = driver.stable_group()
    driver.ask(commit({P0: 1, OTHER: 1}, generation=1, member_id=member.member_id))
    for _ in range(65 * 12):
        driver.advance(5_000)
        driver.ask(driver.heartbeat(member))
    assert set(driver.ask(fetch()).offsets) == {P0}


def test_O3_offsets_with_pending_commits_and_their_groups_do_not_expire() -> None:
    driver = GroupDriver(retention())
    driver.ask(commit({P0: 1, P1: 1}))
    driver.ask(commit({P0: 2}, producer=PRODUCER))
    driver.advance(DAY_MS)
    assert set(driver.ask(fetch(require_stable=False)).offsets) == {P0}
    driver.marker(PRODUCER, committed=False)
    driver.advance(10 * MINUTE_MS)
    assert driver.machine.group(GROUP) is None


def test_O3_empty_group_with_an_open_transaction_stays() -> None:
    driver = GroupDriver(retention())
    [member] = driver.stable_group()
    driver.ask(commit({P0: 1}, generation=1, member_id=member.member_id, producer=PRODUCER))
    driver.ask(driver.leave(member.member_id))
    driver.advance(DAY_MS)
    group = driver.machine.group(GROUP)
    assert group is not None
    assert group.state is GroupState.EMPTY
    driver.marker(PRODUCER, committed=True)
    assert offset(driver, P0) == 1


def test_expiry_of_many_offsets_takes_several_batches() -> None:
    driver = GroupDriver(GroupConfig(offsets_retention_minutes=60, group_records_max_bytes=5_000))
    for number in range(300):
        driver.ask(commit({TopicPartition("orders", number): 1}))
    driver.batches.clear()
    driver.advance(61 * MINUTE_MS)
    driver.advance(20 * MINUTE_MS)
    assert driver.machine.group(GROUP) is None
    assert sum(driver.batches) == 300
    assert max(driver.batches) < 60


def test_expiry_goes_on_after_a_restart() -> None:
    driver = GroupDriver(retention())
    for number in range(10):
        driver.ask(commit({P0: 1}, group=f"group-{number}"))
    driver.reload()
    driver.advance(70 * MINUTE_MS)
    assert driver.machine.durable_state()["committed"] == {}


def test_a_commit_with_a_retention_of_its_own_is_kept_for_so_long() -> None:
    driver = GroupDriver(retention())
    driver.ask(commit({P1: 7}))
    driver.ask(replace(commit({P0: 5}), retention_ms=20 * MINUTE_MS))
    driver.advance(19 * MINUTE_MS)
    assert offset(driver, P0) == 5
    driver.reload()
    driver.advance(12 * MINUTE_MS)
    assert set(driver.ask(fetch()).offsets) == {P1}


def test_a_short_retention_of_its_own_does_not_wait_for_the_others() -> None:
    driver = GroupDriver(retention())
    driver.ask(commit({P1: 7}))
    driver.ask(replace(commit({P0: 5}), retention_ms=1))
    driver.advance(11 * MINUTE_MS)
    assert set(driver.ask(fetch()).offsets) == {P1}


def test_old_values_with_an_expiry_of_their_own_keep_it() -> None:
    driver = GroupDriver(retention())
    writer = Writer()
    writer.int16(1)
    writer.int64(42)
    writer.string("")
    writer.int64(driver.now_ms)
    writer.int64(driver.now_ms + 8 * MINUTE_MS)
    record = CoordinatorRecord(encode_offset_key(OffsetCommitKey(GROUP, P0)), writer.to_bytes())
    driver.reload([LogEntry(0, driver.now_ms, record)])
    driver.log = []
    assert offset(driver, P0) == 42
    driver.advance(14 * MINUTE_MS)
    assert driver.ask(fetch()).offsets == {}


# --- Deletion ---------------------------------------------------------------------------------------------------------


def test_delete_offsets_of_topics_that_nobody_subscribes_to() -> None:
    driver = GroupDriver()
    assert driver.refusal(OffsetDeleteRequest(GROUP, (P0,))) is ErrorCode.GROUP_ID_NOT_FOUND
    [member] = driver.stable_group()
    driver.ask(commit({P0: 1, OTHER: 1}, generation=1, member_id=member.member_id))
    answer = driver.ask(OffsetDeleteRequest(GROUP, (P0, OTHER, TopicPartition("none", 0))))
    assert answer.errors == {
        P0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        OTHER: ErrorCode.NONE,
        TopicPartition("none", 0): ErrorCode.NONE,
    }
    assert set(driver.ask(fetch()).offsets) == {P0}


def test_delete_offsets_of_a_group_that_is_not_of_consumers() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group(protocol_type="connect", protocols={"default": b"x"})
    assert driver.refusal(OffsetDeleteRequest(GROUP, (P0,))) is ErrorCode.NON_EMPTY_GROUP
    driver.ask(driver.leave(member.member_id))
    assert driver.ask(OffsetDeleteRequest(GROUP, (P0,))).errors == {P0: ErrorCode.NONE}


def test_group_with_an_unreadable_subscription_counts_as_subscribed_to_all() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group(protocols={"range": b"\x00"})
    driver.ask(commit({P0: 1}, generation=1, member_id=member.member_id))
    answer = driver.ask(OffsetDeleteRequest(GROUP, (P0,)))
    assert answer.errors == {P0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


def test_deleted_topics_take_their_offsets_along() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 1, OTHER: 1}))
    driver.ask(commit({P1: 1}, group="other"))
    driver.ask(commit({P2: 1}, producer=PRODUCER))
    assert driver.ask(TopicsDeleted(frozenset({"orders", "unknown"}))) is None
    assert set(driver.ask(fetch()).offsets) == {OTHER}
    assert driver.machine.group("other") is None
    driver.marker(PRODUCER, committed=True)
    assert set(driver.ask(fetch()).offsets) == {OTHER}


def test_large_deletions_take_several_batches_and_answer_at_the_end() -> None:
    driver = GroupDriver(GroupConfig(group_records_max_bytes=5_000))
    for number in range(300):
        driver.ask(commit({TopicPartition("orders", number): 1}))
        driver.ask(commit({TopicPartition("returns", number): 1}, group="other"))
    deleting, topics = driver.call(DeleteGroupRequest(GROUP)), driver.call(TopicsDeleted(frozenset({"returns"})))
    assert driver.is_waiting(deleting)
    assert set(driver.machine.closed()) == {deleting, topics}
    driver.run_due()
    assert driver.result(topics) is None
    assert not driver.is_waiting(deleting)
    assert driver.machine.durable_state()["committed"] == {}
    assert max(driver.batches) < 60


MANY = {TopicPartition("orders", number): 1 for number in range(2 * DELETED_AT_ONCE_MAX + 50)}
TOO_MANY = {TopicPartition("orders", number): 1 for number in range(2 * GROUP_AT_ONCE_MAX + 50)}


def test_O1_a_group_goes_with_all_its_offsets_in_one_batch() -> None:
    """A crash finds all of them or none: with a part of them, consumers would skip or repeat in the rest."""
    driver = GroupDriver()
    driver.ask(commit(dict(list(TOO_MANY.items())[: GROUP_AT_ONCE_MAX - 1])))
    driver.batches.clear()
    assert driver.ask(DeleteGroupRequest(GROUP)) == DeleteGroupResponse()
    assert driver.batches == [GROUP_AT_ONCE_MAX]


def test_S3_a_group_with_many_offsets_is_deleted_a_part_at_a_time_and_the_group_last() -> None:
    driver = GroupDriver()
    driver.ask(commit(TOO_MANY))
    begin = len(driver.log)
    driver.batches.clear()
    deleting = driver.call(DeleteGroupRequest(GROUP))
    assert driver.is_waiting(deleting)
    driver.run_due()
    assert driver.result(deleting) == DeleteGroupResponse()
    assert driver.batches == [GROUP_AT_ONCE_MAX, GROUP_AT_ONCE_MAX, 51]
    keys = [decode_key(entry.record.key) for entry in driver.log[begin:] if entry.record is not None]
    assert keys[-1] == GroupMetadataKey(GROUP)
    assert {key.partition for key in keys[:-1] if isinstance(key, OffsetCommitKey)} == set(TOO_MANY)
    assert driver.machine.group(GROUP) is None


def test_S3_offsets_of_a_deleted_topic_and_those_that_expire_go_a_part_at_a_time() -> None:
    driver = GroupDriver(GroupConfig(offsets_retention_minutes=1))
    driver.ask(commit(MANY))
    driver.batches.clear()
    deleting = driver.call(TopicsDeleted(frozenset({"orders"})))
    driver.run_due()
    assert driver.result(deleting) is None
    assert driver.batches == [DELETED_AT_ONCE_MAX, DELETED_AT_ONCE_MAX, 50]

    driver.ask(commit(MANY))
    driver.batches.clear()
    driver.advance(30 * MINUTE_MS)
    assert driver.batches == [DELETED_AT_ONCE_MAX, DELETED_AT_ONCE_MAX, 50]
    assert driver.machine.durable_state()["committed"] == {}


def test_S3_nobody_uses_a_group_of_which_a_part_is_deleted() -> None:
    """A member that joined now would find half of the offsets, and begin elsewhere in the other half."""
    driver = GroupDriver()
    driver.ask(commit(TOO_MANY))
    driver.ask(commit({P0: 7}, group="other"))
    deleting = driver.call(DeleteGroupRequest(GROUP))
    join = driver.join_request("")
    for request in (join, commit({P0: 1}), VerifiedCommit(commit({P0: 1}, producer=PRODUCER), None), fetch(P0)):
        assert driver.refusal(request) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.ask(fetch(P0, group="other")).offsets[P0].offset == 7
    driver.run_due()
    assert driver.result(deleting) == DeleteGroupResponse()
    assert driver.ask(fetch()).offsets == {}
    driver.stable_group()


def test_S3_offsets_that_are_published_while_those_of_their_topic_are_deleted_go_too() -> None:
    driver = GroupDriver()
    driver.ask(commit(MANY))
    pending = TopicPartition("returns", 0)
    driver.ask(commit({pending: 1}, producer=PRODUCER))
    deleting = driver.call(TopicsDeleted(frozenset({"orders", "returns"})))
    assert driver.is_waiting(deleting)
    driver.marker(PRODUCER, committed=True)
    driver.run_due()
    assert driver.result(deleting) is None
    assert driver.machine.durable_state()["committed"] == {}


@pytest.mark.parametrize("expires_ms", [-1, 77])
@pytest.mark.parametrize("leader_epoch", [-1, 5])
@pytest.mark.parametrize("metadata", ["", "text \u00e9"])
def test_O1_the_record_of_an_offset_says_what_is_read_from_its_bytes(
    expires_ms: int, leader_epoch: int, metadata: str
) -> None:
    partition = TopicPartition("orders", 2**31 - 1)
    record = offset_record(GROUP, partition, OffsetCommitValue(42, leader_epoch, metadata, 9, expires_ms))
    assert record.value is not None
    assert (record.offset_key, record.offset_value) == (decode_key(record.key), decode_offset_value(record.value))
    size_bytes = offset_record_size_bytes(GROUP, partition, metadata, has_expiry=expires_ms != -1)
    assert size_bytes == record_size_bytes(record)
    gone = offset_record(GROUP, partition, None)
    assert (gone.offset_key, gone.offset_value) == (decode_key(gone.key), None)


def test_offsets_of_a_topic_no_longer_subscribed_to_can_be_deleted_after_a_restart() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group()
    driver.ask(commit({OTHER: 1, P0: 1}, generation=1, member_id=member.member_id))
    driver.reload()
    answer = driver.ask(OffsetDeleteRequest(GROUP, (P0, OTHER)))
    assert answer.errors == {P0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, OTHER: ErrorCode.NONE}
