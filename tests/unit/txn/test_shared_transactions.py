"""Shared transactions and commit tokens in the coordinator's machine (T12, T13)."""

from __future__ import annotations

from typing import Any

import pytest
from txn_shard import TxnShard

from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import (
    MEMBER_PREFIX,
    AbortSharedRequest,
    CommitOutcome,
    CommitSharedRequest,
    CommitSharedResponse,
    DescribeSharedRequest,
    LeaveSharedRequest,
    ListSharedRequest,
    ListSharedResponse,
    OpenSharedRequest,
    OpenSharedResponse,
    SharedDescription,
    SharedListing,
    key_of_member,
    member_id,
)
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.machine import TICK, CoordinatorRecord
from semel.txn_coordinator.commit_records import RETIRED_RUNS_MAX, encode_decision, encode_old_decision_key
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.effects import SendMarkers
from semel.txn_coordinator.records import size_of
from semel.txn_coordinator.schemas import decode_key

KEY = "spark/query-1/sink"
P0, P1, P2 = (TopicPartition("out", number) for number in range(3))
TIMEOUT_MS = 60_000


class Shared(TxnShard):
    """With shorthands for one key."""

    def open(self, attempt: str, batch: int = 0, *, writer: bool = True) -> OpenSharedResponse:
        response: OpenSharedResponse = self.submit(
            OpenSharedRequest(KEY, attempt, str(batch), TIMEOUT_MS, batch, writer)
        )
        return response

    def join(self, attempt: str, batch: int = 0) -> ProducerIdAndEpoch:
        producer = self.open(attempt, batch).producer
        assert producer is not None
        return producer

    def write(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> None:
        name = member_id(KEY, producer.producer_id)
        response = self.submit(AddPartitionsToTxnRequest(name, producer, partitions))
        assert set(response.errors.values()) == {ErrorCode.NONE}

    def commit(
        self, attempt: str, *writers: ProducerIdAndEpoch, batch: int = 0, payload: bytes = b"0..9"
    ) -> CommitSharedResponse:
        response: CommitSharedResponse = self.submit(
            CommitSharedRequest(KEY, attempt, str(batch), writers, payload, batch)
        )
        return response

    def describe(self) -> SharedDescription:
        description: SharedDescription = self.submit(DescribeSharedRequest(KEY))
        return description

    def markers_sent(self) -> dict[int, bool]:
        """Return, by producer id, what its partitions were last told."""
        return {
            effect.marker.producer.producer_id: effect.marker.committed
            for effect in self.effects
            if isinstance(effect, SendMarkers)
        }

    def write_all_markers(self) -> None:
        for effect in [each for each in self.effects if isinstance(each, SendMarkers)]:
            self.report(effect)
        self.effects.clear()

    def refusal(self, call: Any, *arguments: Any, **options: Any) -> SemelError:
        with pytest.raises(SemelError) as caught:
            call(*arguments, **options)
        return caught.value


@pytest.fixture
def shard() -> Shared:
    return Shared()


def test_T12_exactly_the_named_writers_commit_and_all_others_abort_under_one_decision(shard: Shared) -> None:
    named, loser, idle = (shard.join("a") for _ in range(3))
    shard.write(named, P0, P1)
    shard.write(loser, P0)
    before = len(shard.log)
    response = shard.commit("a", named)
    assert response.outcome is CommitOutcome.COMMITTED
    assert (response.decision.token, response.decision.payload, response.decision.writers) == ("0", b"0..9", 1)
    assert shard.markers_sent() == {named.producer_id: True, loser.producer_id: False}
    # The whole decision is in the records of this one call, which are appended as one batch.
    assert len(shard.log) - before == 5
    assert idle.producer_id not in {writer.producer.producer_id for writer in shard.describe().writers}


def test_T12_nothing_of_the_writers_is_left_when_their_markers_are_written(shard: Shared) -> None:
    writer = shard.join("a")
    shard.write(writer, P0)
    shard.commit("a", writer)
    assert [each.state for each in shard.describe().writers] == ["PrepareCommit"]
    shard.write_all_markers()
    assert shard.describe().writers == ()
    error = shard.refusal(shard.write, writer, P0)
    assert error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_T12_a_commit_that_names_a_writer_which_is_gone_commits_nothing(shard: Shared) -> None:
    kept, lost = shard.join("a"), shard.join("a")
    shard.write(kept, P0)
    shard.write(lost, P1)
    shard.submit(AbortTransactionRequest(member_id(KEY, lost.producer_id)))
    error = shard.refusal(shard.commit, "a", kept, lost)
    assert error.code is ErrorCode.TRANSACTION_ABORTABLE
    assert shard.markers_sent() == {lost.producer_id: False}
    assert shard.describe().decisions == ()


@pytest.mark.parametrize("wrong", [ProducerIdAndEpoch(5, 0), ProducerIdAndEpoch(1001, 7)])
def test_T12_a_commit_that_names_a_stranger_or_another_epoch_commits_nothing(
    shard: Shared, wrong: ProducerIdAndEpoch
) -> None:
    shard.write(shard.join("a"), P0)
    assert shard.refusal(shard.commit, "a", wrong).code is ErrorCode.TRANSACTION_ABORTABLE
    assert shard.markers_sent() == {}


def test_T12_a_writer_named_twice_is_refused(shard: Shared) -> None:
    writer = shard.join("a")
    assert shard.refusal(shard.commit, "a", writer, writer).code is ErrorCode.INVALID_REQUEST


def test_T12_a_newer_attempt_aborts_and_fences_the_writers_of_the_older_one(shard: Shared) -> None:
    old = shard.join("a")
    shard.write(old, P0)
    new = shard.join("b")
    assert shard.markers_sent() == {old.producer_id: False}
    assert shard.refusal(shard.write, old, P1).code is ErrorCode.PRODUCER_FENCED
    shard.write_all_markers()
    assert shard.refusal(shard.write, old, P1).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shard.refusal(shard.join, "a").code is ErrorCode.PRODUCER_FENCED
    assert shard.refusal(shard.commit, "a", old).code is ErrorCode.PRODUCER_FENCED
    shard.write(new, P0)
    assert shard.commit("b", new).outcome is CommitOutcome.COMMITTED


def test_T12_a_late_writer_of_a_decided_attempt_is_told_that_it_is_committed_or_sent_away(shard: Shared) -> None:
    shard.commit("a", shard.join("a"))
    assert shard.open("a").committed is not None
    assert shard.refusal(shard.join, "a", 1).code is ErrorCode.PRODUCER_FENCED


def test_T12_a_writer_cannot_end_or_renew_its_transaction_by_itself(shard: Shared) -> None:
    writer = shard.join("a")
    shard.write(writer, P0)
    name = member_id(KEY, writer.producer_id)
    for committed in (True, False):
        error = shard.refusal(shard.submit, EndTxnRequest(name, writer, committed))
        assert error.code is ErrorCode.INVALID_TXN_STATE
    assert shard.refusal(shard.submit, InitProducerIdRequest(name, TIMEOUT_MS)).code is ErrorCode.INVALID_REQUEST
    assert shard.commit("a", writer).outcome is CommitOutcome.COMMITTED


def test_nobody_takes_a_transactional_id_of_a_writer(shard: Shared) -> None:
    error = shard.refusal(shard.submit, InitProducerIdRequest(f"{MEMBER_PREFIX}x/1", TIMEOUT_MS))
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "choose another" in error.message


def test_T12_one_writer_leaves_and_the_others_commit(shard: Shared) -> None:
    stays, leaves, idle = (shard.join("a") for _ in range(3))
    shard.write(stays, P0)
    shard.write(leaves, P0)
    for producer in (leaves, idle, leaves):
        shard.submit(LeaveSharedRequest(KEY, "a", producer))
    assert shard.markers_sent() == {leaves.producer_id: False}
    assert shard.refusal(shard.commit, "a", stays, leaves).code is ErrorCode.TRANSACTION_ABORTABLE
    assert shard.commit("a", stays).outcome is CommitOutcome.COMMITTED


def test_T12_an_attempt_without_writers_commits(shard: Shared) -> None:
    """A batch without rows still moves its source on."""
    assert shard.commit("a").decision.writers == 0
    assert shard.commit("b", batch=1).outcome is CommitOutcome.COMMITTED
    assert [decision.token for decision in shard.describe().decisions] == ["0", "1"]


def test_T12_an_abort_ends_the_attempt_and_its_late_writers(shard: Shared) -> None:
    writer = shard.join("a")
    shard.write(writer, P0)
    shard.submit(AbortSharedRequest(KEY, "a"))
    shard.submit(AbortSharedRequest(KEY, "a"))
    assert shard.markers_sent() == {writer.producer_id: False}
    assert shard.refusal(shard.join, "a").code is ErrorCode.PRODUCER_FENCED
    shard.submit(AbortSharedRequest(KEY, "never opened"))
    assert shard.refusal(shard.join, "never opened").code is ErrorCode.PRODUCER_FENCED


def test_T12_an_abort_never_undoes_a_decision_nor_a_newer_attempt(shard: Shared) -> None:
    writer = shard.join("a")
    shard.write(writer, P0)
    shard.commit("a", writer)
    shard.submit(AbortSharedRequest(KEY, "a"))
    assert shard.markers_sent() == {writer.producer_id: True}
    newer = shard.join("b", 1)
    shard.write(newer, P0)
    shard.submit(AbortSharedRequest(KEY, "a"))
    assert shard.commit("b", newer, batch=1).outcome is CommitOutcome.COMMITTED


def test_T12_T4_a_crash_between_decision_and_markers_changes_nothing(shard: Shared) -> None:
    named, loser = shard.join("a"), shard.join("a")
    shard.write(named, P0)
    shard.write(loser, P1)
    shard.commit("a", named)
    sent = shard.markers_sent()
    shard.reload(epoch=4)
    assert shard.markers_sent() == sent == {named.producer_id: True, loser.producer_id: False}
    shard.write_all_markers()
    assert shard.describe().writers == ()


def test_T9_a_writer_that_times_out_is_aborted_and_the_attempt_cannot_commit_it(shard: Shared) -> None:
    writes, idle = shard.join("a"), shard.join("a")
    shard.now_ms += TIMEOUT_MS // 2
    shard.write(writes, P0)
    shard.now_ms += TIMEOUT_MS // 2
    shard.tick()
    assert [each.producer for each in shard.describe().writers] == [writes], "the idle one counts from its joining"
    assert shard.refusal(shard.commit, "a", writes, idle).code is ErrorCode.TRANSACTION_ABORTABLE
    shard.now_ms += TIMEOUT_MS // 2
    shard.tick()
    assert shard.markers_sent() == {writes.producer_id: False}
    assert shard.refusal(shard.commit, "a", writes).code is ErrorCode.TRANSACTION_ABORTABLE


def test_T13_a_commit_repeated_after_its_answer_was_lost_gives_the_same_answer(shard: Shared) -> None:
    writer = shard.join("a")
    shard.write(writer, P0)
    first = shard.commit("a", writer)
    size = len(shard.log)
    assert shard.commit("a", writer) == first
    shard.reload()
    assert shard.commit("a", writer) == first
    assert len(shard.log) == size


def test_T13_a_token_that_is_recorded_changes_nothing_and_says_so(shard: Shared) -> None:
    shard.commit("a", shard.join("a"))
    opened = shard.open("b")
    assert opened.producer is None
    assert opened.committed is not None
    assert opened.committed.attempt == "a"
    assert shard.commit("b").outcome is CommitOutcome.ALREADY_COMMITTED
    assert len(shard.describe().decisions) == 1


def test_T13_the_same_token_with_another_payload_is_refused_loudly(shard: Shared) -> None:
    shard.commit("a", payload=b"0..9")
    error = shard.refusal(shard.commit, "b", payload=b"0..7")
    assert error.code is ErrorCode.INVALID_TXN_STATE
    assert "rolled back" in error.message


def test_T13_a_sequence_that_is_not_after_the_last_one_is_refused(shard: Shared) -> None:
    shard.commit("a", batch=5)
    for call in (lambda: shard.join("b", 3), lambda: shard.commit("b", batch=3)):
        assert shard.refusal(call).code is ErrorCode.INVALID_TXN_STATE
    assert shard.commit("b", batch=7).outcome is CommitOutcome.COMMITTED


def test_T13_the_last_hundred_commits_are_remembered() -> None:
    shard = Shared(config=TransactionConfig(commit_history_max=3))
    for batch in range(5):
        shard.commit(f"a{batch}", batch=batch)
    shard.reload()
    assert [decision.token for decision in shard.describe().decisions] == ["2", "3", "4"]
    assert shard.refusal(shard.commit, "b", batch=1).code is ErrorCode.INVALID_TXN_STATE
    assert TransactionConfig().commit_history_max == 100


def test_an_attempt_that_names_another_token_is_refused(shard: Shared) -> None:
    shard.join("a", 0)
    assert shard.refusal(shard.join, "a", 1).code is ErrorCode.INVALID_REQUEST
    assert shard.refusal(shard.commit, "a", batch=1).code is ErrorCode.INVALID_REQUEST


def test_writers_of_one_attempt_are_bounded() -> None:
    shard = Shared(config=TransactionConfig(shared_transaction_max_writers=2))
    shard.join("a")
    shard.join("a")
    error = shard.refusal(shard.join, "a")
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "shared.transaction.max.writers" in error.message
    assert "coalesce(n)" in error.message
    assert "let several tasks share one" in error.message


def test_a_decision_too_large_for_one_batch_is_refused_and_nothing_happens() -> None:
    shard = Shared(config=TransactionConfig(transaction_record_max_bytes=1_000))
    writers = [shard.join("a") for _ in range(10)]
    for writer in writers:
        shard.write(writer, P0)
    error = shard.refusal(shard.commit, "a", *writers)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert "10 writers wrote to 10 partitions" in error.message
    assert "coalesce(n)" in error.message
    assert shard.markers_sent() == {}


def crowd(*, ticks: int = 0) -> tuple[Shared, list[ProducerIdAndEpoch], list[ProducerIdAndEpoch]]:
    """A commit of two writers, and 20 losers, of which only some fit into the decision's batch."""
    shard = Shared(config=TransactionConfig(transaction_record_max_bytes=1_500))
    named, losers = [shard.join("a") for _ in range(2)], [shard.join("a") for _ in range(20)]
    for writer in (*named, *losers):
        shard.write(writer, P0)
    assert shard.commit("a", *named).outcome is CommitOutcome.COMMITTED
    for _ in range(ticks):
        shard.submit(TICK)
    return shard, named, losers


def test_T12_losers_that_the_decision_has_no_room_for_do_not_make_it_fail() -> None:
    """600 writers were committed alone, and with 390 losers besides the commit was refused as too large."""
    shard, named, losers = crowd()
    assert 2 < len(shard.markers_sent()) < 22, "the winners, and as many losers as fit"
    assert shard.machine.next_deadline_ms() == 0, "the rest at once"
    shard.tick()
    assert shard.markers_sent() == {each.producer_id: each in named for each in (*named, *losers)}
    assert max(map(size_of, shard.batches)) <= shard.config.transaction_record_max_bytes, "in bounded pieces"
    shard.write_all_markers()
    assert shard.describe().writers == ()
    deadline_ms = shard.machine.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms > shard.now_ms, "and then it is quiet"


@pytest.mark.parametrize("ticks", [0, 1])
def test_T12_T4_losers_left_by_a_decision_are_aborted_after_a_crash(ticks: int) -> None:
    shard, named, losers = crowd(ticks=ticks)
    shard.reload(epoch=4)
    shard.tick()
    assert shard.markers_sent() == {each.producer_id: each in named for each in (*named, *losers)}
    shard.write_all_markers()
    assert shard.describe().writers == ()


def test_T12_losers_left_by_a_decision_can_neither_commit_nor_harm_the_next_attempt() -> None:
    shard, named, losers = crowd()
    left = [each for each in losers if each.producer_id not in shard.markers_sent()]
    assert shard.refusal(shard.commit, "a", left[0], batch=1).code is ErrorCode.PRODUCER_FENCED
    late = shard.join("b", 1)
    assert shard.refusal(shard.commit, "b", late, left[-1], batch=1).code is ErrorCode.TRANSACTION_ABORTABLE
    shard.write(late, P0)
    shard.tick()
    assert shard.commit("b", late, batch=1).outcome is CommitOutcome.COMMITTED
    shard.tick()
    sent = shard.markers_sent()
    assert [number for number, committed in sent.items() if committed] == [each.producer_id for each in (*named, late)]
    assert len(sent) == 23


def test_superseding_more_writers_than_one_batch_holds_leaves_none_that_could_commit() -> None:
    shard = Shared(config=TransactionConfig(transaction_record_max_bytes=1_000))
    old = [shard.join("a") for _ in range(10)]
    for writer in old:
        shard.write(writer, P0)
    new = shard.join("b")
    assert 0 < len(shard.markers_sent()) < 10
    assert shard.refusal(shard.commit, "a", *old).code is ErrorCode.PRODUCER_FENCED
    assert shard.refusal(shard.commit, "b", new, old[-1]).code is ErrorCode.TRANSACTION_ABORTABLE
    shard.tick()
    assert set(shard.markers_sent()) == {writer.producer_id for writer in old}, "without waiting for their timeout"
    assert new in {writer.producer for writer in shard.describe().writers}


def test_a_key_that_is_idle_for_long_is_forgotten(shard: Shared) -> None:
    shard.commit("a")
    shard.now_ms += shard.config.commit_history_expiration_ms - 1
    shard.tick()
    assert len(shard.describe().decisions) == 1
    shard.now_ms += 1
    shard.tick()
    assert shard.describe() == SharedDescription(KEY, "", "", -1, (), ())
    shard.reload()
    assert shard.describe().decisions == ()


def test_T13_keys_are_listed_with_their_last_commit_and_what_is_open(shard: Shared) -> None:
    def listed() -> tuple[SharedListing, ...]:
        response: ListSharedResponse = shard.submit(ListSharedRequest())
        return response.keys

    assert listed() == ()
    shard.open("a", 7, writer=False)
    assert listed() == (SharedListing(KEY, "7"),)
    decided_ms = shard.commit("a", batch=7).decision.decided_ms
    assert listed() == (SharedListing(KEY, "", "7", decided_ms),)
    shard.open("b", 8, writer=False)
    assert listed() == (SharedListing(KEY, "8", "7", decided_ms),)
    shard.reload()
    assert listed() == (SharedListing(KEY, "8", "7", decided_ms),)
    shard.submit(AbortSharedRequest(KEY, "b"))
    assert listed() == (SharedListing(KEY, "", "7", decided_ms),)
    shard.now_ms += shard.config.commit_history_expiration_ms
    shard.tick()
    assert listed() == ()


def test_keys_with_slashes_are_found_again() -> None:
    assert key_of_member(member_id("a/b/c", 17)) == "a/b/c"
    assert key_of_member("enrich-0") is None


def test_what_writers_leave_in_memory_does_not_grow_with_batches(shard: Shared) -> None:
    """Each writer is a new id: timers for it stayed for seven days, 1.9 KB a writer."""
    sizes = []
    for batch in range(40):
        writers = [shard.join(f"a{batch}", batch) for _ in range(20)]
        for writer in writers[:15]:
            shard.write(writer, P0)
        shard.commit(f"a{batch}", *writers[:10], batch=batch)
        shard.write_all_markers()
        sizes.append(len(shard.machine._timeouts._heap) + len(shard.machine._expirations._heap))
    assert max(sizes) < 200, "800 writers have come and gone"


def test_E5_a_one_off_commit_is_remembered_for_a_while_and_then_leaves_nothing(shard: Shared) -> None:
    """A write that nobody can repeat was remembered for 30 days."""
    for number in range(3):
        key = f"spark-write/{number}"
        writer = shard.submit(OpenSharedRequest(key, "a", "write", TIMEOUT_MS, one_off=True)).producer
        shard.submit(AddPartitionsToTxnRequest(member_id(key, writer.producer_id), writer, (P0,)))
        request = CommitSharedRequest(key, "a", "write", (writer,), b"", one_off=True)
        done = shard.submit(request)
        shard.reload()
        assert shard.submit(request) == done, "asked right after, also after a crash"
    shard.submit(CommitSharedRequest("no rows", "a", "write", (), one_off=True))
    shard.submit(AbortSharedRequest("failed", "a", one_off=True))
    shard.now_ms += shard.config.commit_one_off_expiration_ms
    shard.tick()
    assert shard.submit(DescribeSharedRequest(key)).decisions == (done.decision,), "its markers are not written yet"
    shard.write_all_markers()
    shard.now_ms += shard.config.commit_one_off_expiration_ms
    shard.tick()
    assert shard.submit(DescribeSharedRequest(key)) == SharedDescription(key, "", "", -1, (), ())
    left = {record.key: record.value for record in shard.log}
    assert set(left.values()) == {None}, "compaction leaves no record"
    assert shard.machine.next_deadline_ms() is None
    assert not shard.machine.shared._attempts


def test_T13_a_key_with_a_line_of_commits_never_becomes_a_one_off(shard: Shared) -> None:
    shard.commit("a")
    shard.submit(CommitSharedRequest(KEY, "b", "1", (), one_off=True))
    shard.now_ms += shard.config.commit_one_off_expiration_ms
    shard.tick()
    assert len(shard.describe().decisions) == 2
    shard.submit(CommitSharedRequest("other", "a", "0", (), one_off=True))
    shard.submit(CommitSharedRequest("other", "b", "1", ()))
    shard.now_ms += shard.config.commit_one_off_expiration_ms
    shard.tick()
    assert len(shard.submit(DescribeSharedRequest("other")).decisions) == 2


def run_request(run: str, attempt: str, batch: int) -> OpenSharedRequest:
    return OpenSharedRequest(KEY, attempt, str(batch), TIMEOUT_MS, batch, run=run)


def test_T12_a_task_of_an_older_run_that_never_joined_does_not_take_over_from_the_live_one(shard: Shared) -> None:
    shard.submit(CommitSharedRequest(KEY, "old-0", "0", (), b"", 0, run="old"))
    live = shard.submit(run_request("new", "new-1", 1)).producer
    shard.write(live, P0)
    for _ in range(2):
        for call in (run_request("old", "old-1", 1), CommitSharedRequest(KEY, "old-1", "1", (), b"", 1, run="old")):
            error = shard.refusal(shard.submit, call)
            assert error.code is ErrorCode.PRODUCER_FENCED
            assert "run 'new' has taken the place" in error.message
        shard.reload()
    assert shard.submit(run_request("old", "old-0", 0)).committed is not None, "T13: what is decided is told to all"
    assert shard.commit("new-1", live, batch=1).outcome is CommitOutcome.COMMITTED


def test_T12_a_run_that_aborts_one_attempt_may_try_again_and_attempts_without_a_run_are_as_before(
    shard: Shared,
) -> None:
    shard.submit(run_request("r", "a", 0))
    shard.submit(AbortSharedRequest(KEY, "a"))
    shard.submit(run_request("r", "b", 0))
    shard.join("c")
    shard.submit(run_request("r", "d", 0))
    assert shard.describe().attempt == "d"


def test_T12_the_memory_of_runs_that_are_over_is_bounded(shard: Shared) -> None:
    for number in range(100):
        shard.submit(run_request(f"run-{number}", f"a-{number}", 0))
    assert shard.refusal(shard.submit, run_request("run-80", "late", 0)).code is ErrorCode.PRODUCER_FENCED
    state = shard.machine.shared._attempts[KEY]
    assert len(state.retired_runs) == RETIRED_RUNS_MAX


def test_T13_a_token_repeated_with_another_sequence_is_refused_loudly(shard: Shared) -> None:
    """77 for 0 passed as a repetition."""
    shard.commit("a", payload=b"")
    for call in (
        CommitSharedRequest(KEY, "b", "0", (), b"", 77),
        OpenSharedRequest(KEY, "b", "0", TIMEOUT_MS, 77),
    ):
        error = shard.refusal(shard.submit, call)
        assert error.code is ErrorCode.INVALID_TXN_STATE
        assert "committed as sequence 0, not 77" in error.message
    repeated = shard.submit(CommitSharedRequest(KEY, "b", "0", ()))
    assert repeated.outcome is CommitOutcome.ALREADY_COMMITTED


class Tokens(TxnShard):
    """With shorthands for one producer that commits with tokens."""

    def begin(self) -> ProducerIdAndEpoch:
        producer: ProducerIdAndEpoch = self.submit(InitProducerIdRequest("load", TIMEOUT_MS)).producer
        self.add(producer)
        return producer

    def add(self, producer: ProducerIdAndEpoch) -> None:
        self.submit(AddPartitionsToTxnRequest("load", producer, (P0,)))

    def end(self, producer: ProducerIdAndEpoch, token: str, payload: bytes = b"", sequence: int = -1) -> EndTxnResponse:
        request = EndTxnRequest("load", producer, committed=True, token=token, payload=payload, sequence=sequence)
        response: EndTxnResponse = self.submit(request)
        return response


def test_T13_a_producers_commit_records_its_token() -> None:
    shard = Tokens()
    shard.end(shard.begin(), "day-1", b"rows 0..9", 1)
    shard.reload()
    (decision,) = shard.submit(DescribeSharedRequest("load")).decisions
    assert (decision.token, decision.payload, decision.sequence, decision.writers) == ("day-1", b"rows 0..9", 1, 1)


def test_T13_a_producer_that_commits_a_recorded_token_again_is_aborted_and_told_so() -> None:
    shard = Tokens()
    after = shard.end(shard.begin(), "day-1").producer
    shard.write_markers()
    shard.add(after)
    again = shard.end(after, "day-1")
    assert again.already_committed
    assert shard.markers().marker.committed is False
    shard.write_markers()
    assert shard.end(after, "day-1") == again, "T7: repeated, the same answer"
    assert len(shard.submit(DescribeSharedRequest("load")).decisions) == 1


def test_T13_T7_a_repeated_commit_is_not_taken_for_another_one_with_the_same_token() -> None:
    shard = Tokens()
    producer = shard.begin()
    first = shard.end(producer, "day-1")
    shard.write_markers()
    assert shard.end(producer, "day-1") == first
    assert not first.already_committed


def test_T13_a_producers_token_with_another_payload_or_an_old_sequence_is_refused() -> None:
    shard = Tokens()
    after = shard.end(shard.begin(), "day-1", b"a", 5).producer
    shard.write_markers()
    shard.add(after)
    for token, payload, sequence in (("day-1", b"b", 5), ("day-2", b"", 5), ("day-2", b"", 4)):
        with pytest.raises(SemelError) as caught:
            shard.end(after, token, payload, sequence)
        assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    assert not shard.end(after, "day-2", b"", 6).already_committed


def test_T13_a_commit_of_nothing_is_remembered_by_its_token_and_moves_the_epoch_on() -> None:
    shard = Tokens()
    producer = shard.submit(InitProducerIdRequest("load", TIMEOUT_MS)).producer
    first = shard.end(producer, "day-1")
    assert not first.already_committed
    assert first.producer.producer_epoch == producer.producer_epoch + 1
    shard.reload()
    assert [decision.token for decision in shard.submit(DescribeSharedRequest("load")).decisions] == ["day-1"]
    assert shard.end(first.producer, "day-1").already_committed
    with pytest.raises(SemelError):
        shard.end(first.producer, "")


def test_T13_a_producers_tokens_and_those_of_a_shared_key_of_the_same_name_are_not_taken_for_each_other() -> None:
    """A producer's commit of a token made a shared transaction of that name say it was committed, and it never ran."""
    shard = Tokens()
    after = shard.end(shard.begin(), "day-1", b"a", 1).producer
    shard.write_markers()
    assert shard.submit(OpenSharedRequest("load", "x", "day-1", TIMEOUT_MS, 1)).committed is None
    shared = shard.submit(CommitSharedRequest("load", "x", "day-1", (), b"b", 1))
    assert shared.outcome is CommitOutcome.COMMITTED
    shard.submit(CommitSharedRequest("load", "y", "day-2", (), b"b", 7))
    shard.reload()
    shard.add(after)
    assert not shard.end(after, "day-2", b"c", 2).already_committed
    found = [(each.token, each.attempt) for each in shard.submit(DescribeSharedRequest("load")).decisions]
    assert sorted(found) == [("day-1", ""), ("day-1", "x"), ("day-2", ""), ("day-2", "y")]


def test_T13_records_of_commits_in_the_old_form_are_still_read_and_removed() -> None:
    """Before the kinds had record keys of their own, a key had commits of either, told apart by their attempts."""
    shard = Tokens(config=TransactionConfig(commit_history_max=2))
    old = [("load", "t0", ""), ("load", "t1", ""), ("job", "0", "a"), ("job", "1", "b")]
    for number, (key, token, attempt) in enumerate(old):
        decision = CommitDecision(token, number, b"p", attempt, shard.now_ms, 1)
        shard.log.append(CoordinatorRecord(encode_old_decision_key(key, token), encode_decision(decision)))
    shard.reload()
    assert shard.end(shard.begin(), "t1", b"p", 1).already_committed
    again = shard.submit(CommitSharedRequest("job", "c", "1", (), b"p", 3))
    assert again.outcome is CommitOutcome.ALREADY_COMMITTED
    assert shard.submit(OpenSharedRequest("load", "c", "t1", TIMEOUT_MS)).committed is None, "it was a producer's"
    shard.submit(CommitSharedRequest("job", "c", "2", (), b"p", 4))
    shard.submit(CommitSharedRequest("load", "c", "t1", (), b"q"))
    for _ in range(2):
        found = shard.submit(DescribeSharedRequest("job")).decisions
        assert [each.token for each in found] == ["1", "2"]
        found = shard.submit(DescribeSharedRequest("load")).decisions
        assert sorted((each.token, each.attempt) for each in found) == [("t0", ""), ("t1", ""), ("t1", "c")]
        compacted = {record.key: record for record in shard.log}
        assert compacted[encode_old_decision_key("job", "0")].value is None, "what was surplus leaves the log, too"
        shard.reload()
    shard.now_ms += shard.config.commit_history_expiration_ms
    shard.tick()
    left = {record.key: record.value for record in shard.log if decode_key(record.key) is None}
    assert set(left.values()) == {None}
