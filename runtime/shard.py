"""Runs a coordinator's machines over the partitions of an internal topic.

    handle -> append records -> replay -> answer when committed

One shard is one machine over one partition. The machine decides, the shard appends what it decided and replays it into
the machine at once, so the next request sees it; but answers and effects leave only when the log has committed all that
was replayed before them (T2, T3), so nothing uncommitted is ever visible outside. An answer for which nothing was
appended passes a barrier first, because a shard that was replaced could give it, too (R9). When an append or a commit
fails, the machine is thrown away and built again from the log: there is no rollback code.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import BatchHeader, iter_batches
from semel.protocol.control_records import ControlType, decode_control
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, error_for
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition
from semel.protocol.record_decoder import Record, decode_records
from semel.runtime.clock import Clock
from semel.runtime.invariants import BrokenInvariantError, check
from semel.runtime.machine import DEFERRED, TICK, CoordinatorRecord, Deferred, Machine, Result, Ticket
from semel.runtime.read_barrier import ReadBarrier
from semel.runtime.turns import call_in_turn

_log = logging.getLogger("semel.shard")

LOAD_CHUNK_BYTES = 1 << 20
RELOAD_PAUSE_S = 0.05
RELOAD_PAUSE_S_MAX = 300.0
"""A log that cannot be read is looked at again ever more rarely: somebody may fix it while the node runs."""
TICK_PAUSE_S_MAX = 5.0


class ShardLog(Protocol):
    """The partition of an internal topic that a shard lives on, as far as the shard needs it."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def append_batch(self, batch: bytearray) -> int:
        """Append as a coordinator (P5) and return the base offset. Raises `SemelError`; then nothing was appended."""
        ...

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        version: TransactionVersion,
        *,
        forged_epoch: int,
    ) -> int | None:
        """Append a marker and return its offset, or None where it repeats one that was applied already (P9).

        version:      says whether its epoch is above its data's (KIP-890), so that a late one is known and refused.
        forged_epoch: a coordinator epoch that no coordinator ever had, and that therefore fences none; -1 for nothing.
        """
        ...

    def read_batches(self, offset: int, max_bytes: int) -> bytes | memoryview:
        """Return whole batches from the one that holds `offset` on: at least one, unless the log ends there."""
        ...

    async def wait_committed(self, offset: int) -> None:
        """Wait until the high watermark is past `offset`. Raises `SemelError` where it never will be."""
        ...


class ShardState(Enum):
    """What a shard does, and what may follow (`MOVES`)."""

    LOADING = "loading"
    """Its log is read into the machine, or was not readable and is tried again. Callers are refused."""
    ACTIVE = "active"
    CLOSED = "closed"
    """The partition is not led here any more."""


MOVES: Final[Mapping[ShardState, frozenset[ShardState]]] = {
    ShardState.LOADING: frozenset({ShardState.ACTIVE, ShardState.CLOSED}),
    ShardState.ACTIVE: frozenset({ShardState.LOADING, ShardState.CLOSED}),
    ShardState.CLOSED: frozenset(),
}
"""The states that may follow each. An active shard loads again after a failed append, commit or rule."""


@dataclass(slots=True)
class _Parked:
    """What leaves the shard once the log has committed `offset`."""

    offset: int
    answers: Sequence[tuple[Ticket, object]]
    effects: Sequence[Any]


class Shard:
    """One machine over one partition. `ShardRuntime` has all of a topic, and is what others use."""

    def __init__(
        self,
        tp: TopicPartition,
        log: ShardLog,
        make_machine: Callable[[], Machine],
        on_effects: Callable[[Sequence[Any]], None],
        clock: Clock,
        barrier: ReadBarrier,
        leader_epoch: int,
    ) -> None:
        self.tp = tp
        self._barrier = barrier
        self._leader_epoch = leader_epoch
        self._state = ShardState.LOADING
        self._log = log
        self._make_machine = make_machine
        self._on_effects = on_effects
        self._clock = clock
        self._machine = make_machine()
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._last_ticket = 0
        self._replayed_offset = -1
        self._parked: deque[_Parked] = deque()
        self._release_task: asyncio.Task[None] | None = None
        self._behind_barrier: set[asyncio.Task[None]] = set()
        self._load_task: asyncio.Task[None] | None = None
        self._load_error: SemelError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._tick_pause_s = 0.0
        self._no_tick_before_s = 0.0

    @property
    def state(self) -> ShardState:
        return self._state

    def _move_to(self, state: ShardState) -> None:
        check(state in MOVES[self._state], self.tp, "a shard's state changes as MOVES says", of=self._state, to=state)
        self._state = state

    @property
    def machine(self) -> Machine:
        """The machine, to look at. Another one after each reload."""
        return self._machine

    @property
    def load_error(self) -> SemelError | None:
        """Why the last attempt to read the log failed, or None."""
        return self._load_error

    def start(self) -> asyncio.Future[None]:
        """Begin to load the machine from the log. Done when the shard is active, or the first attempt has failed:
        callers then wait for nothing, they are told why (COORDINATOR_NOT_AVAILABLE), and the attempts continue.
        """
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._load_task = asyncio.get_running_loop().create_task(self._load(tried), name=f"load {self.tp}")
        self._load_task.add_done_callback(lambda _: tried.cancel())
        return tried

    async def submit(self, request: object) -> Any:
        """Return the machine's answer to a request once all it rests on is committed. Raises `SemelError`.

        One that rests on no record of its own is given only if the partition was still led here after the call (R9).
        """
        self._check_active()
        ticket, answer = self._new_ticket()
        try:
            self._decide(request, ticket)
            return await answer
        finally:
            self._waiting.pop(ticket, None)
            answer.cancel()  # where the refusal came by another way, nobody looks at this one any more
            if not answer.cancelled():
                answer.exception()

    async def write_marker(
        self,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        version: TransactionVersion,
        forged_epoch: int,
    ) -> None:
        """Write a transaction marker into the shard's own partition and apply it to the machine."""
        self._check_active()
        now_ms = self._clock.now_ms()
        offset = self._log.append_marker(producer, coordinator_epoch, committed, version, forged_epoch=forged_epoch)
        try:
            self._machine.marker_came(producer)
            result = None
            if offset is not None:
                self._check_appended(offset, 1)
                self._replayed_offset = offset
                result = self._machine.replay_marker(producer, committed, now_ms)
        except Exception as error:
            raise self._broken(error) from error
        if offset is not None:
            if result is not None:
                assert not result.records, "a marker's replay appends nothing"
                self._park(result.answers, result.effects)
            self._arm_timer()
        await self._log.wait_committed(self._replayed_offset)
        if offset is None and (passing := self.begin_confirming()) is not None:
            await passing

    def begin_confirming(self) -> Awaitable[None] | None:
        """Begin to show that the partition is still led here (R9); see `ReadBarrier.begin`."""
        return self._barrier.begin(self.tp, self._leader_epoch)

    def run_due_timer(self) -> None:
        """Give the machine its tick where one is due; the event loop's timer calls this, and so do simulations."""
        if self.state is not ShardState.ACTIVE:
            return
        now_ms = self._clock.now_ms()
        deadline_ms = self._machine.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            try:
                self._decide(TICK, None)
            except SemelError:
                self._pause_ticks()
                return  # the reload that follows arms the timer again
            self._tick_pause_s = 0.0
        self._timer_ms = None
        self._arm_timer()

    def _pause_ticks(self) -> None:
        """Let some time pass before the next tick: on a full disk it fails again, and reads the whole log for it."""
        self._tick_pause_s = min(max(self._tick_pause_s * 2, RELOAD_PAUSE_S), TICK_PAUSE_S_MAX)
        self._no_tick_before_s = asyncio.get_running_loop().time() + self._tick_pause_s

    def close(self) -> None:
        """Stop, and answer every caller that still waits with NOT_COORDINATOR (R9)."""
        if self.state is ShardState.CLOSED:
            return
        self._move_to(ShardState.CLOSED)
        self._drop_machine(
            RetriableError(f"{self.tp} moved away; find its coordinator again", ErrorCode.NOT_COORDINATOR)
        )
        if self._load_task is not None:
            self._load_task.cancel()

    def _check_active(self) -> None:
        if self.state is ShardState.LOADING:
            if self._load_error is not None:
                raise RetriableError(self._load_error.message, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            raise RetriableError(
                f"{self.tp} is being read into memory; try again shortly", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            )
        if self.state is ShardState.CLOSED:
            raise RetriableError(f"{self.tp} is not led here; find its coordinator again", ErrorCode.NOT_COORDINATOR)

    def _new_ticket(self) -> tuple[Ticket, asyncio.Future[Any]]:
        self._last_ticket += 1
        ticket = Ticket(self._last_ticket)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answer
        return ticket, answer

    def _decide(self, request: object, ticket: Ticket | None) -> None:
        """Let the machine decide and carry it out. Raises `SemelError` for what the caller is to be told at once."""
        now_ms = self._clock.now_ms()
        result: Result[Any] | None = None
        try:
            result = self._machine.handle(request, now_ms, ticket or Ticket(0))
            self._carry_out(result, ticket, now_ms)
        except SemelError as error:
            if result is None:
                raise self._broken(error) from error
            refusal = self._append_failed(result, error)
            if refusal is not error or ticket is None:
                raise refusal from error
            answers = [(ticket, refusal)]  # nothing was appended: the log's state has said so
            if not self._must_wait(answers):
                self._park(answers, ())
        except Exception as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> SemelError:
        """A bug in the machine: what it holds now may be half of a change, the log is whole. Start again from that."""
        _log.exception("a coordinator's machine failed partition=%s", self.tp)
        failure = FatalError(f"{self.tp} failed on this request: {error!r}; its coordinator starts again from its log")
        self._reload(failure)
        return failure

    def _carry_out(self, result: Result[Any], ticket: Ticket | None, now_ms: int) -> None:
        if result.records:
            self._append_and_replay(result, now_ms)
        answers = result.answers
        if ticket is not None and not isinstance(result.response, Deferred):
            answers = [*answers, (ticket, result.response)]
        if not result.records and self._must_wait(answers):
            answers = ()
        self._park(answers, result.effects)  # D5: without records of its own, too
        self._arm_timer()

    def _must_wait(self, answers: Sequence[tuple[Ticket, object]]) -> bool:
        """Say whether answers that rest on state alone must wait at the barrier (R9), which they then do."""
        passing = self._barrier.begin(self.tp, self._leader_epoch) if answers else None
        if passing is None:
            return False
        task = asyncio.get_running_loop().create_task(self._answer_behind(passing, answers), name=f"barrier {self.tp}")
        self._behind_barrier.add(task)
        task.add_done_callback(self._behind_barrier.discard)
        return True

    async def _answer_behind(self, passing: Awaitable[None], answers: Sequence[tuple[Ticket, object]]) -> None:
        try:
            await passing
        except SemelError as error:
            self._release([(ticket, error_for(error.code, error.message)) for ticket, _ in answers], ())
        except Exception as error:
            _log.exception("a barrier failed partition=%s", self.tp)
            refusal = f"{self.tp} can't tell whether it is still led here: {error!r}; find its coordinator again"
            self._release([(ticket, RetriableError(refusal, ErrorCode.NOT_COORDINATOR)) for ticket, _ in answers], ())
        else:
            self._park(answers, ())

    def _append_and_replay(self, result: Result[Any], now_ms: int) -> None:
        producer = result.producer or NO_PRODUCER
        batch = encode_batch(
            [(now_ms, record.key, record.value, ()) for record in result.records],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transactional=result.producer is not None,
        )
        offset = self._log.append_batch(bytearray(batch))
        self._check_appended(offset, len(result.records))
        for record in result.records:
            self._machine.replay(record, offset, result.producer, now_ms)
            self._replayed_offset = offset
            offset += 1

    def _check_appended(self, offset: int, count: int) -> None:
        """Check that what is about to be replayed is in the log, and was not replayed before."""
        log_end_offset = self._log.log_end_offset
        if not self._replayed_offset < offset <= log_end_offset - count:
            raise BrokenInvariantError(
                self.tp, "what is replayed is in the log, behind what was replayed before",
                offset=offset, count=count, replayed_offset=self._replayed_offset, log_end_offset=log_end_offset,
            )  # fmt: skip

    def _park(self, answers: Sequence[tuple[Ticket, object]], effects: Sequence[Any]) -> None:
        if not answers and not effects:
            return
        if not self._parked and self._log.high_watermark > self._replayed_offset:
            self._release(answers, effects)
            return
        self._parked.append(_Parked(self._replayed_offset, answers, effects))
        if self._release_task is None:
            self._release_task = asyncio.get_running_loop().create_task(self._release_parked(), name=f"park {self.tp}")

    async def _release_parked(self) -> None:
        try:
            while self._parked:
                await self._log.wait_committed(self._parked[0].offset)
                high_watermark = self._log.high_watermark
                while self._parked and self._parked[0].offset < high_watermark:
                    parked = self._parked.popleft()
                    self._release(parked.answers, parked.effects)
        except SemelError as error:
            self._release_task = None
            self._reload(error)
        except Exception as error:
            # An effect that was lost, markers above all, is found again in the log (T4).
            self._release_task = None
            self._broken(error)
        else:
            self._release_task = None

    def _release(self, answers: Sequence[tuple[Ticket, object]], effects: Sequence[Any]) -> None:
        for ticket, response in answers:
            future = self._waiting.pop(ticket, None)
            if future is None or future.done():
                continue
            if isinstance(response, SemelError):
                future.set_exception(response)
            else:
                assert response is not DEFERRED
                future.set_result(response)
        if effects:
            self._on_effects(effects)

    def _append_failed(self, result: Result[Any], error: SemelError) -> SemelError:
        """Return what the caller gets: the log's word about a producer (P4, P6), or that we failed."""
        if result.producer is not None and not isinstance(error, RetriableError):
            return error
        self._reload(error)
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            return FatalError(f"{self.tp}: {error.message}", ErrorCode.MESSAGE_TOO_LARGE)
        return RetriableError(f"{self.tp} could not append: {error.message}", ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _reload(self, error: SemelError) -> None:
        if self.state is not ShardState.ACTIVE:
            return
        _log.error("shard failed, reloading from its log partition=%s error=%s", self.tp, error)
        self._move_to(ShardState.LOADING)
        self._drop_machine(
            RetriableError(f"{self.tp} could not commit: {error.message}", ErrorCode.COORDINATOR_NOT_AVAILABLE)
        )
        self.start()

    def _drop_machine(self, error: SemelError) -> None:
        self._machine.closed()
        self._parked.clear()
        if self._release_task is not None:
            self._release_task.cancel()
            self._release_task = None
        for task in self._behind_barrier:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_ms = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)

    async def _load(self, tried: asyncio.Future[None]) -> None:
        pause_s = RELOAD_PAUSE_S
        failures = 0
        while True:
            try:
                await self._replay_log()
            except Exception as error:
                failures += 1
                self._note_load_error(error)
            else:
                if self._load_error is not None:
                    _log.info("%s could be read at attempt %d, and is coordinated again", self.tp, failures + 1)
                    self._load_error = None
            if not tried.done():
                tried.set_result(None)
            if self.state is not ShardState.LOADING:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RELOAD_PAUSE_S_MAX)

    def _note_load_error(self, error: Exception) -> None:
        """Say why the log cannot be read, once: it is the same at every attempt."""
        message = error.message if isinstance(error, SemelError) else f"{type(error).__name__}: {error}"
        known, failure = self._load_error, RetriableError(f"{self.tp} can't be read: {message}")
        if known is not None and known.message == failure.message:
            return
        self._load_error = failure
        unexpected = not isinstance(error, SemelError)
        _log.error(
            "%s. What it coordinates is refused until it can be read; that is tried again, ever more rarely. Stop the "
            "node and restore the directory %s from a backup; without one, move the directory away and accept the loss "
            "(--accept-loss-of %s:%d): what it coordinates is then forgotten",
            failure.message, self.tp, self.tp.topic, self.tp.partition, exc_info=error if unexpected else None,
        )  # fmt: skip

    async def _replay_log(self) -> None:
        machine = self._make_machine()
        offset = self._log.log_start_offset
        end_offset = self._log.log_end_offset
        while offset < end_offset:
            chunk = self._log.read_batches(offset, LOAD_CHUNK_BYTES)
            if not len(chunk):
                break
            offset = replay_batches(machine, chunk, offset)
            await asyncio.sleep(0)
        if end_offset > 0:
            await self._log.wait_committed(end_offset - 1)
        check(
            offset <= self._log.log_end_offset, self.tp, "nothing is replayed that is not in the log",
            next_offset=offset, log_end_offset=self._log.log_end_offset,
        )  # fmt: skip
        self._machine = machine
        self._replayed_offset = end_offset - 1
        self._move_to(ShardState.ACTIVE)
        now_ms = self._clock.now_ms()
        result = machine.loaded(now_ms)
        try:
            self._carry_out(result, None, now_ms)
        except SemelError as error:
            self._move_to(ShardState.LOADING)
            raise RetriableError(f"{self.tp} could not append after loading: {error.message}", error.code) from error
        except Exception:
            self._move_to(ShardState.LOADING)
            raise

    def _arm_timer(self) -> None:
        deadline_ms = self._machine.next_deadline_ms()
        if deadline_ms == self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = deadline_ms
        if deadline_ms is not None:
            loop = asyncio.get_running_loop()
            delay_s = max((deadline_ms - self._clock.now_ms()) / 1000, self._no_tick_before_s - loop.time(), 0.0)
            self._timer = loop.call_later(delay_s, call_in_turn, self.run_due_timer)


def replay_batches(machine: Machine, chunk: bytes | memoryview, from_offset: int) -> int:
    """Replay the batches of `chunk` from `from_offset` on into `machine`; return the offset after the last one."""
    next_offset = from_offset
    view = memoryview(chunk)
    position = 0
    for header in _batches(view, from_offset):
        batch = view[position : position + header.size_bytes]
        position += header.size_bytes
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch) if header.is_transactional else None
        for record in _records(batch, header):
            if record.offset < from_offset:
                continue
            if header.is_control:
                assert producer is not None, "a marker always names a producer"
                machine.replay_marker(producer, decode_control(record).type is ControlType.COMMIT, record.timestamp_ms)
            elif record.key is not None:
                machine.replay(
                    CoordinatorRecord(record.key, record.value), record.offset, producer, record.timestamp_ms
                )
        next_offset = max(next_offset, header.next_offset)
    return next_offset


def _batches(view: memoryview, from_offset: int) -> Iterator[BatchHeader]:
    next_offset = from_offset
    try:
        for header in iter_batches(view):
            next_offset = header.next_offset
            yield header
    except CorruptBatchError as error:
        raise CorruptBatchError(f"the batch at offset {next_offset} is broken: {error.message}") from error


def _records(batch: memoryview, header: BatchHeader) -> Sequence[Record]:
    try:
        return decode_records(batch)
    except CorruptBatchError as error:
        raise CorruptBatchError(f"the batch at offset {header.base_offset} is broken: {error.message}") from error
