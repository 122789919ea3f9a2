"""Does each request with a key once: waits for its lane, and tries until it is known what became of it, in bounds."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
    error_for,
)
from semel.web.problems import Problem
from semel.web.rest.bounds import KEY_WAIT_S, LANE_PRODUCERS_MAX
from semel.web.rest.errors import UNPROCESSABLE, rest_problem
from semel.web.rest.once.answers import Answer, Answers, too_busy
from semel.web.rest.once.lane import Lane

if TYPE_CHECKING:
    from semel.web.gateway import Caller, Gateway
    from semel.web.rest.background import Background
    from semel.web.rest.once.keys import RequestKey
    from semel.web.rest.once.work import Work

_FINAL: Final = frozenset(
    {
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""What a group refuses offsets with, and would again."""
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5


class _Turn:
    """A lane with its queue. current: the key that is being done."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.lock = asyncio.Lock()
        self.current: RequestKey | None = None
        self.waiting = 0


class Lanes:
    """The lanes of all users that this gateway has used lately."""

    def __init__(self, gateway: Gateway, answers: Answers, background: Background) -> None:
        self._gateway = gateway
        self._answers = answers
        self._background = background
        self._turns: OrderedDict[tuple[Caller, int], _Turn] = OrderedDict()

    async def do(self, caller: Caller, key: RequestKey, fingerprint: str, work: Work) -> Answer:
        """Do a request's work once, and return its answer; a repetition gets the first one's.

        Raises `Problem`: 409 where the group stands elsewhere or the same key is still being done, 422 for a key of
        another request, 503 where it is not known in time what became of it.
        """
        deadline = asyncio.get_running_loop().time() + KEY_WAIT_S
        turn = self._turn(caller, key.lane)
        turn.waiting += 1
        try:
            await self._wait_turn(turn, key, deadline)
            try:
                turn.current = key
                answer = await self._done(turn.lane, key, fingerprint, work, deadline)
            finally:
                turn.current = None
                turn.lock.release()
        finally:
            turn.waiting -= 1
        if answer.fingerprint != fingerprint:
            raise Problem(
                422,
                "this key was used for another request: another one needs a key of its own",
                error_code=UNPROCESSABLE,
            )
        return answer

    def _turn(self, caller: Caller, lane: int) -> _Turn:
        turn = self._turns.get((caller, lane))
        if turn is None:
            self._make_room()
            turn = _Turn(Lane(self._gateway, caller, lane, self._answers, self._background))
            self._turns[caller, lane] = turn
        self._turns.move_to_end((caller, lane))
        return turn

    def _make_room(self) -> None:
        if len(self._turns) < LANE_PRODUCERS_MAX:
            return
        idle = next((place for place, turn in self._turns.items() if not turn.waiting), None)
        if idle is None:
            raise too_busy(f"{len(self._turns)} transactions are under way")
        self._turns.pop(idle).lane.drop()

    async def _wait_turn(self, turn: _Turn, key: RequestKey, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await turn.lock.acquire()
        except TimeoutError:
            if turn.current == key:
                raise Problem(
                    409, "a request with this key is still being done: ask again", error_code=409, retry_after_s=1
                ) from None
            raise too_busy("others are being done before this request") from None

    async def _done(self, lane: Lane, key: RequestKey, fingerprint: str, work: Work, deadline: float) -> Answer:
        loop = asyncio.get_running_loop()
        pause_s = _PAUSE_S
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await lane.attempt(key, fingerprint, work)
            except (FencedError, RetriableError) as error:
                lane.drop()
                if loop.time() + pause_s >= deadline:
                    raise _not_known(error) from error
            except AbortTransactionError as error:
                if _is_final(error.code):
                    raise rest_problem(error) from error
                if loop.time() + pause_s >= deadline:
                    raise too_busy(f"nothing of this request took effect ({error})") from error
            except TimeoutError:
                lane.drop()
                raise too_busy("what became of this request is not known yet") from None
            except (SemelError, Problem):
                raise
            except BaseException:
                lane.drop()
                raise
            await asyncio.sleep(random.uniform(pause_s / 4, pause_s))  # noqa: S311 (two gateways are not to keep in step)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    async def close(self) -> None:
        """Close all producers."""
        while self._turns:
            _, turn = self._turns.popitem()
            await turn.lane.close()


def _is_final(code: ErrorCode) -> bool:
    """Whether a transaction that was aborted for this would be again."""
    return code in _FINAL or isinstance(error_for(code, ""), FatalError)


def _not_known(error: SemelError) -> Problem:
    if error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return rest_problem(error)
    return too_busy(f"what became of this request is not known yet ({error})")
