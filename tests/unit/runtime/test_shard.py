"""The shard runtime with a machine of a few lines and a log whose commits the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from memory_log import MemoryLog

from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode, FatalError, FencedError, RetriableError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime import shard
from semel.runtime.clock import ManualClock
from semel.runtime.invariants import BrokenInvariantError
from semel.runtime.machine import DEFERRED, CoordinatorRecord, Result, Tick, Ticket
from semel.runtime.read_barrier import ONE_NODE
from semel.runtime.shard import MOVES, Shard, ShardState
from semel.runtime.shard_runtime import ShardRuntime


@dataclass(frozen=True)
class Put:
    key: bytes
    value: bytes
    producer: ProducerIdAndEpoch | None = None


@dataclass(frozen=True)
class Get:
    key: bytes


@dataclass(frozen=True)
class WaitFor:
    key: bytes


@dataclass(frozen=True)
class Poison:
    pass


@dataclass(frozen=True)
class WakeAt:
    deadline_ms: int


class Dictionary:
    """A key-value store as a machine: puts are records, transactional ones wait for their marker."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.pending: dict[int, list[CoordinatorRecord]] = {}
        self.waiting: dict[bytes, Ticket] = {}
        self.deadline_ms: int | None = None
        self.poisonous = False
        self.ended: list[ProducerIdAndEpoch] = []

    def handle(self, request: Any, now_ms: int, ticket: Ticket) -> Result[Any]:
        match request:
            case Put(key, value, producer):
                answers = [(self.waiting.pop(key), value)] if key in self.waiting else []
                record = CoordinatorRecord(key, value)
                return Result(b"put", [record], answers=answers, effects=[("put", key)], producer=producer)
            case Get(b"arm"):
                self.poisonous = True
                return Result(b"armed")
            case Get(key) if key in self.values:
                return Result(self.values[key])
            case Get(key):
                return Result(FatalError(f"no {key!r}", ErrorCode.INVALID_REQUEST))
            case WaitFor(key):
                self.waiting[key] = ticket
                return Result(DEFERRED)
            case Poison():
                return Result(b"never", [CoordinatorRecord(b"half", b"done"), CoordinatorRecord(b"poison", b"")])
            case WakeAt(deadline_ms):
                self.deadline_ms = deadline_ms
                return Result(None)
            case Tick():
                self.deadline_ms = None
                return Result(None, [CoordinatorRecord(b"tick", b"%d" % now_ms)])
        raise AssertionError(request)

    def replay(self, record: CoordinatorRecord, offset: int, producer: ProducerIdAndEpoch | None, now_ms: int) -> None:
        if record.key == b"poison" and self.poisonous:
            raise RuntimeError("a bug")
        if record.key == b"deadline":
            self.deadline_ms = int(record.value or b"0")
        if producer is None:
            self.values[record.key] = record.value
        else:
            self.pending.setdefault(producer.producer_id, []).append(record)

    def marker_came(self, producer: ProducerIdAndEpoch) -> None:
        self.ended.append(producer)

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool, now_ms: int) -> Result[None] | None:
        for record in self.pending.pop(producer.producer_id, ()):
            if committed:
                self.values[record.key] = record.value
        return None

    def loaded(self, now_ms: int) -> Result[None]:
        return Result(None, effects=[("loaded", len(self.values))])

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def closed(self) -> Sequence[Ticket]:
        return list(self.waiting.values())


class Fixture:
    def __init__(self, *, auto_commit: bool = True) -> None:
        self.log = MemoryLog(auto_commit=auto_commit)
        self.clock = ManualClock()
        self.effects: list[Any] = []
        self.effects_broken = False
        self.runtime = ShardRuntime(
            "__toy",
            open_log=lambda partition: self.log,
            make_machine=lambda partition, epoch: Dictionary(),
            on_effects=self._take_effects,
            clock=self.clock,
        )

    def _take_effects(self, partition: int, effects: Sequence[Any]) -> None:
        if self.effects_broken:
            raise RuntimeError("a bug")
        self.effects.extend(effects)

    async def loaded(self) -> Fixture:
        await self.runtime.load(0, leader_epoch=0)
        self.effects.clear()
        return self

    def start(self, request: object) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.runtime.submit(0, request))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


PRODUCER = ProducerIdAndEpoch(7, 1)


def test_T2_an_answer_leaves_only_when_its_record_is_committed() -> None:
    async def scenario() -> None:
        it = await Fixture(auto_commit=False).loaded()
        put = it.start(Put(b"k", b"v"))
        get = it.start(Get(b"k"))
        await settle()
        assert not put.done()
        assert not get.done(), "a read saw what was not committed"
        assert it.effects == []
        await it.log.commit()
        assert await put == b"put"
        assert await get == b"v"
        assert it.effects == [("put", b"k")]

    run(scenario())


def test_T3_effects_run_after_the_commit_and_in_order() -> None:
    async def scenario() -> None:
        it = await Fixture(auto_commit=False).loaded()
        puts = [it.start(Put(b"%d" % n, b"v")) for n in range(5)]
        await settle()
        assert it.effects == []
        await it.log.commit()
        await asyncio.gather(*puts)
        assert it.effects == [("put", b"%d" % n) for n in range(5)]

    run(scenario())


def test_T2_of_two_parked_answers_only_the_committed_one_leaves() -> None:
    async def scenario() -> None:
        it = await Fixture(auto_commit=False).loaded()
        first, second = it.start(Put(b"a", b"1")), it.start(Put(b"b", b"2"))
        await settle()
        await it.log.commit(upto=1)
        assert await first == b"put"
        await settle()
        assert not second.done(), "its record is at offset 1, which is not committed"
        assert it.effects == [("put", b"a")]
        await it.log.commit()
        assert await second == b"put"
        assert it.effects == [("put", b"a"), ("put", b"b")]

    run(scenario())


def test_O1_T3_a_marker_in_consumer_offsets_counts_when_it_is_durable() -> None:
    """Also one that repeats a marker which is not durable yet: Complete is recorded by its word."""

    async def scenario() -> None:
        it = await Fixture(auto_commit=False).loaded()
        put = it.start(Put(b"k", b"v", PRODUCER))
        await settle()
        await it.log.commit()
        await put
        ended = (ProducerIdAndEpoch(PRODUCER.producer_id, PRODUCER.producer_epoch + 1), 0, True, TransactionVersion.V2)
        marker = asyncio.ensure_future(it.runtime.write_marker(0, *ended))
        await settle()
        repeated = asyncio.ensure_future(it.runtime.write_marker(0, *ended))
        get = it.start(Get(b"k"))
        await settle()
        assert it.log.log_end_offset == 2, "the repeated marker is not appended (P9)"
        [machine] = it.runtime.machines()
        assert isinstance(machine, Dictionary)
        assert machine.ended == [ended[0]] * 2, "it is heard of all the same (T8)"
        assert not marker.done()
        assert not repeated.done()
        assert not get.done(), "what the marker published was seen before it was durable"
        await it.log.commit()
        await asyncio.gather(marker, repeated)
        assert await get == b"v"

    run(scenario())


def test_refusals_are_raised_to_the_caller() -> None:
    async def scenario() -> None:
        it = await Fixture().loaded()
        with pytest.raises(FatalError, match="no b'k'"):
            await it.runtime.submit(0, Get(b"k"))

    run(scenario())


def test_a_deferred_answer_comes_with_the_request_that_releases_it() -> None:
    async def scenario() -> None:
        it = await Fixture().loaded()
        waiting = it.start(WaitFor(b"k"))
        await settle()
        assert not waiting.done()
        await it.runtime.submit(0, Put(b"k", b"v"))
        assert await waiting == b"v"

    run(scenario())


def test_a_failed_commit_drops_the_machine_and_reloads_it_from_the_log() -> None:
    async def scenario() -> None:
        it = await Fixture(auto_commit=False).loaded()
        first = it.start(Put(b"kept", b"1"))
        await settle()
        await it.log.commit()
        await first
        lost = it.start(Put(b"lost", b"2"))
        deferred = it.start(WaitFor(b"other"))
        await settle()
        await it.log.break_commit(RetriableError("the disk is gone", ErrorCode.KAFKA_STORAGE_ERROR))
        for caller in (lost, deferred):
            with pytest.raises(RetriableError) as refused:
                await caller
            assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await settle()
        assert it.runtime.state(0) is ShardState.ACTIVE
        assert await it.runtime.submit(0, Get(b"kept")) == b"1"
        with pytest.raises(FatalError):
            await it.runtime.submit(0, Get(b"lost"))

    run(scenario())


def test_a_failed_append_is_retriable_and_reloads() -> None:
    async def scenario() -> None:
        it = await Fixture().loaded()
        it.log.refuse = RetriableError("disk full", ErrorCode.KAFKA_STORAGE_ERROR)
        with pytest.raises(RetriableError) as refused:
            await it.runtime.submit(0, Put(b"k", b"v"))
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await settle()
        await it.runtime.submit(0, Put(b"k", b"v"))
        assert await it.runtime.submit(0, Get(b"k")) == b"v"

    run(scenario())


def test_P4_a_zombies_transactional_append_is_its_own_error_and_disturbs_nobody() -> None:
    async def scenario() -> None:
        it = await Fixture().loaded()
        waiting = it.start(WaitFor(b"k"))
        await settle()
        it.log.refuse = FencedError("epoch 0 is older than 1", ErrorCode.INVALID_PRODUCER_EPOCH)
        with pytest.raises(FencedError):
            await it.runtime.submit(0, Put(b"z", b"v", PRODUCER))
        assert it.runtime.state(0) is ShardState.ACTIVE
        await it.runtime.submit(0, Put(b"k", b"v"))
        assert await waiting == b"v"

    run(scenario())


@pytest.mark.parametrize(("version", "bump"), [(TransactionVersion.V1, 0), (TransactionVersion.V2, 1)])
@pytest.mark.parametrize("committed", [True, False])
def test_O1_transactional_records_wait_for_their_marker_also_after_a_reload(
    committed: bool, version: TransactionVersion, bump: int
) -> None:
    async def scenario() -> None:
        it = await Fixture().loaded()
        await it.runtime.submit(0, Put(b"k", b"old"))
        await it.runtime.submit(0, Put(b"k", b"new", PRODUCER))
        assert await it.runtime.submit(0, Get(b"k")) == b"old"
        await it.runtime.load(0, leader_epoch=1)
        assert await it.runtime.submit(0, Get(b"k")) == b"old"
        ended = ProducerIdAndEpoch(PRODUCER.producer_id, PRODUCER.producer_epoch + bump)
        await it.runtime.write_marker(0, ended, 0, committed, version)
        expected = b"new" if committed else b"old"
        assert await it.runtime.submit(0, Get(b"k")) == expected
        await it.runtime.load(0, leader_epoch=2)
        assert await it.runtime.submit(0, Get(b"k")) == expected

    run(scenario())


def test_T4_effects_that_could_not_be_handed_on_are_found_again_in_the_log() -> None:
    async def scenario() -> None:
        it = await Fixture(auto_commit=False).loaded()
        hand_on, it.effects_broken = it.effects_broken, True
        first, second = it.start(Put(b"a", b"1")), it.start(Put(b"b", b"2"))
        await settle()
        await it.log.commit()
        assert await first == b"put"
        with pytest.raises(RetriableError) as refused:
            await second
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        it.effects_broken = hand_on
        await settle()
        assert it.runtime.state(0) is ShardState.ACTIVE
        assert it.effects == [("loaded", 2)]
        assert await it.runtime.submit(0, Get(b"b")) == b"2"

    run(scenario())


def test_T3_T4_a_shard_that_loads_acts_only_when_what_it_has_read_is_committed() -> None:
    async def scenario() -> None:
        it = Fixture(auto_commit=False)
        it.log.append_batch(bytearray(encode_batch([(0, b"decision", b"commit", ())])))
        loading = asyncio.ensure_future(it.runtime.load(0, leader_epoch=0))
        await settle()
        assert not loading.done()
        assert it.effects == []
        await it.log.commit()
        await loading
        assert it.effects == [("loaded", 1)]

    run(scenario())


def test_a_machine_that_breaks_in_the_midst_of_a_change_starts_again_from_the_log() -> None:
    async def scenario() -> None:
        it = await Fixture().loaded()
        await it.runtime.submit(0, Put(b"kept", b"1"))
        await it.runtime.submit(0, Get(b"arm"))
        with pytest.raises(FatalError, match="a bug"):
            await it.runtime.submit(0, Poison())
        await settle()
        assert it.runtime.state(0) is ShardState.ACTIVE
        assert await it.runtime.submit(0, Get(b"kept")) == b"1"
        assert await it.runtime.submit(0, Get(b"half")) == b"done", "the log has it, so the machine does"

    run(scenario())


def test_a_tick_comes_when_the_machines_deadline_has_passed() -> None:
    async def scenario() -> None:
        it = await Fixture().loaded()
        await it.runtime.submit(0, WakeAt(it.clock.now_ms() + 60_000))
        it.runtime.run_due_timers()
        with pytest.raises(FatalError):
            await it.runtime.submit(0, Get(b"tick"))
        it.clock.advance(ms=60_000)
        it.runtime.run_due_timers()
        assert await it.runtime.submit(0, Get(b"tick")) == b"%d" % it.clock.now_ms()

    run(scenario())


def test_S2_a_tick_that_a_full_disk_refuses_is_tried_again_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log kept the deadline, so the tick was due again as soon as the log was read, without end."""
    tried = 0

    async def scenario() -> None:
        it = await Fixture().loaded()
        append = it.log.append_batch

        def refuse(batch: bytearray) -> int:
            nonlocal tried
            tried += 1
            raise RetriableError("disk full", ErrorCode.KAFKA_STORAGE_ERROR)

        await it.runtime.submit(0, Put(b"deadline", b"%d" % (it.clock.now_ms() - 1)))
        monkeypatch.setattr(it.log, "append_batch", refuse)
        for _ in range(100):
            await settle()
        assert 1 <= tried <= 10
        accepted = asyncio.Event()

        def accept(batch: bytearray) -> int:
            accepted.set()
            return append(batch)

        monkeypatch.setattr(it.log, "append_batch", accept)
        await accepted.wait()

    run(scenario())


def test_a_partition_that_is_given_up_answers_its_waiters_and_refuses_new_ones() -> None:
    async def scenario() -> None:
        it = await Fixture().loaded()
        waiting = it.start(WaitFor(b"k"))
        await settle()
        it.runtime.unload(0)
        for caller in (waiting, it.start(Get(b"k"))):
            with pytest.raises(RetriableError) as refused:
                await caller
            assert refused.value.code is ErrorCode.NOT_COORDINATOR

    run(scenario())


def test_a_log_that_cannot_be_read_is_said_once_and_its_callers_are_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three errors every five seconds said what was wrong and not what to do, and clients waited for ever."""
    monkeypatch.setattr(shard, "RELOAD_PAUSE_S", 0.0)
    caplog.set_level("INFO")

    async def scenario() -> None:
        it = await Fixture().loaded()
        for n in range(3):
            await it.runtime.submit(0, Put(b"k%d" % n, b"v"))
        base_offset, good = it.log.batches[1]
        it.log.batches[1] = base_offset, good[:-1] + bytes([good[-1] ^ 255])
        caplog.clear()
        await asyncio.wait_for(asyncio.ensure_future(it.runtime.load(0, leader_epoch=0)), 30)
        for _ in range(3):
            await settle()
            with pytest.raises(
                RetriableError, match=r"__toy-0 can't be read: the batch at offset 1 is broken"
            ) as caught:
                await it.runtime.submit(0, Get(b"k0"))
            assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert list(it.runtime.unreadable()) == [0]
        [record] = caplog.records
        assert record.levelname == "ERROR"
        assert record.exc_info is None
        for word in ("__toy-0", "offset 1", "restore the directory", "from a backup"):
            assert word in record.getMessage()
        it.log.batches[1] = base_offset, good
        while it.runtime.state(0) is not ShardState.ACTIVE:  # noqa: ASYNC110 - it ends on its own
            await asyncio.sleep(0)
        assert await it.runtime.submit(0, Get(b"k2")) == b"v"
        assert not it.runtime.unreadable()
        assert [each.levelname for each in caplog.records] == ["ERROR", "INFO"]

    run(scenario())


def test_a_log_that_starts_inside_a_batch_is_replayed_from_its_start() -> None:
    async def scenario() -> None:
        it = Fixture()
        records = [(0, b"a", b"1", ()), (0, b"b", b"2", ()), (0, b"c", b"3", ())]
        it.log.append_batch(bytearray(encode_batch(records)))
        it.log.log_start_offset = 1
        await it.loaded()
        assert [await it.runtime.submit(0, Get(key)) for key in (b"b", b"c")] == [b"2", b"3"]
        with pytest.raises(FatalError, match="no b'a'"):
            await it.runtime.submit(0, Get(b"a"))

    run(scenario())


def test_requests_while_loading_are_told_to_come_again() -> None:
    async def scenario() -> None:
        it = Fixture()
        loading = it.runtime.load(0, leader_epoch=0)
        with pytest.raises(RetriableError) as refused:
            await it.runtime.submit(0, Get(b"k"))
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await loading

    run(scenario())


RULE = "what is replayed is in the log, behind what was replayed before"


@pytest.mark.parametrize(("offset", "numbers"), [(0, "offset=0, count=1, replayed_offset=1"), (2, "log_end_offset=2")])
def test_a_record_that_is_not_in_the_log_is_not_replayed(offset: int, numbers: str) -> None:
    async def scenario() -> None:
        it = await Fixture().loaded()
        await it.runtime.submit(0, Put(b"a", b"1"))
        await it.runtime.submit(0, Put(b"b", b"2"))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(it.log, "append_batch", lambda batch: offset)
            with pytest.raises(FatalError, match=f"__toy-0: broken invariant: {RULE}.*{numbers}"):
                await it.runtime.submit(0, Put(b"a", b"3"))
        await settle()
        assert it.runtime.state(0) is ShardState.ACTIVE, "built again from the log"
        assert await it.runtime.submit(0, Get(b"a")) == b"1"

    run(scenario())


def test_a_marker_that_is_not_in_the_log_is_not_replayed() -> None:
    async def scenario() -> None:
        it = await Fixture().loaded()
        await it.runtime.submit(0, Put(b"k", b"v", PRODUCER))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(it.log, "append_marker", lambda *what, forged_epoch: 7)
            with pytest.raises(FatalError, match=f"broken invariant: {RULE}.*offset=7"):
                await asyncio.wait_for(it.runtime.write_marker(0, PRODUCER, 0, True, TransactionVersion.V1), 30)
        await settle()
        with pytest.raises(FatalError, match="no b'k'"):
            await it.runtime.submit(0, Get(b"k"))

    run(scenario())


def test_a_shard_that_has_read_more_than_its_log_holds_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "RELOAD_PAUSE_S", 0.0)

    async def scenario() -> None:
        it = await Fixture().loaded()
        for n in range(3):
            await it.runtime.submit(0, Put(b"k%d" % n, b"v"))
        it.log.log_end_offset = 2
        await asyncio.wait_for(asyncio.ensure_future(it.runtime.load(0, leader_epoch=0)), 30)
        with pytest.raises(
            RetriableError, match=r"nothing is replayed that is not in the log.*next_offset=3"
        ) as caught:
            await it.runtime.submit(0, Get(b"k0"))
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        it.runtime.close()

    run(scenario())


@pytest.mark.parametrize("state", ShardState)
@pytest.mark.parametrize("to", ShardState)
def test_a_shard_changes_its_state_as_the_table_says(state: ShardState, to: ShardState) -> None:
    it = Fixture()
    shard = Shard(TopicPartition("__toy", 0), it.log, Dictionary, lambda effects: None, it.clock, ONE_NODE, 0)
    shard._state = state
    if to in MOVES[state]:
        shard._move_to(to)
        assert shard.state is to
    else:
        with pytest.raises(BrokenInvariantError, match="as MOVES says"):
            shard._move_to(to)
        assert shard.state is state


def test_what_is_closed_stays_closed() -> None:
    """Also where its log was being read: what follows the last pause would have opened it again."""

    async def scenario() -> None:
        it = Fixture()
        loading = asyncio.ensure_future(it.runtime.load(0, leader_epoch=0))
        await asyncio.sleep(0)
        [shard] = it.runtime._shards.values()
        it.runtime.close()
        await asyncio.gather(loading, return_exceptions=True)
        await settle()
        assert shard.state is ShardState.CLOSED

    run(scenario())
