"""What transactional ids, shared transactions and remembered commits hold in memory, about; and the bound of it (S2).

It is counted by owner: a transactional id, or a key of shared transactions with its writers. Each owner has 4 KiB that
are counted when it comes, so that within them nothing is ever refused to it. What an owner holds beyond them is refused
where all is full, unless it is less than a fair share: strangers can't stop others by filling what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import CommitSharedRequest, OpenSharedRequest
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, EndTxnRequest
from semel.protocol.errors import ErrorCode
from semel.runtime.refusals import Refusals
from semel.txn_coordinator.commit_records import AttemptState
from semel.txn_coordinator.effects import WithProducerId
from semel.txn_coordinator.producer_identity import refuse
from semel.txn_coordinator.state import TransactionMetadata

FIRST_BYTES: Final = 4 << 10
"""What is counted for each owner from the first: nobody else can take it."""
ID_BYTES: Final = 900
"""A transactional id with its state, its producer, its client and its timers, without its text."""
PARTITION_BYTES: Final = 170
"""A partition in a transaction."""
TOPIC_BYTES: Final = 150
"""A topic in a transaction, with its id."""
KEY_BYTES: Final = 700
"""A key of shared transactions."""
COMMIT_BYTES: Final = 500
"""A commit that is remembered, without its token and payload."""
_TEXT_BYTES: Final = 60


class Held(NamedTuple):
    """What is counted, and how many owners hold more than their first 4 KiB."""

    bytes: int
    large: int


class HeldBytes:
    """What the owners in one partition of `__transaction_state` hold."""

    __slots__ = ("_large", "_owners", "_total", "refusals")

    def __init__(self, refusals: Refusals | None = None) -> None:
        self.refusals = refusals or Refusals()
        """Where it is counted what was refused because there is too much."""
        self._owners: dict[str, int] = {}
        self._total = 0
        self._large = 0

    def of(self, owner: str) -> int:
        """Return what an owner holds; 0 for one that is not known."""
        return self._owners.get(owner, 0)

    def add(self, owner: str, more: int) -> None:
        """Count what came, or went where `more` is negative."""
        before = self._owners.get(owner, 0)
        after = before + more
        if after:
            self._owners[owner] = after
        else:
            self._owners.pop(owner, None)
        self._total += counted(after) - counted(before)
        self._large += (after > FIRST_BYTES) - (before > FIRST_BYTES)

    def sum(self) -> Held:
        return Held(self._total, self._large)


def counted(held: int) -> int:
    """Return what is counted for an owner that holds so much."""
    return max(held, FIRST_BYTES) if held else 0


class Room:
    """Says whether there is room for more, in all partitions of this node together."""

    def __init__(self, bytes_max: int, held: HeldBytes, held_by_all: Callable[[], Held]) -> None:
        self._bytes_max = bytes_max
        self._held = held
        self._held_by_all = held_by_all

    def refuse(self, request: Any, growth: Mapping[str, int]) -> None:
        """Raise `RefusalError` where what a request makes larger, by owner, has no room."""
        for owner, more in growth.items():
            before = self._held.of(owner)
            extra = counted(before + more) - counted(before)
            if extra <= 0:
                continue
            held = self._held_by_all()
            if held.bytes + extra <= self._bytes_max:
                continue
            if before and before + more <= self._bytes_max // 2 // (held.large + 1):
                continue
            self._held.refusals.note("transactional.ids.max.bytes")
            raise refuse(
                _code_of(request),
                f"the transactional ids, open transactions and remembered commits of this node hold {held.bytes} bytes "
                f"of {self._bytes_max} (transactional.ids.max.bytes), and {extra} more for {owner!r} are too many: use "
                "fewer transactional ids, or raise the setting. Ids that are not used expire "
                "(transactional.id.expiration.ms)",
            )


def grows(request: Any) -> bool:
    """Whether what a request leads to is subject to the bound: an end without a token never is (T7)."""
    if isinstance(request, EndTxnRequest):
        return request.committed and bool(request.token)
    if isinstance(request, WithProducerId):
        return grows(request.request)
    return isinstance(
        request, (InitProducerIdRequest, AddPartitionsToTxnRequest, OpenSharedRequest, CommitSharedRequest)
    )


def transaction_bytes(txn: TransactionMetadata | None) -> int:
    """Return what an id holds; 0 for one that is not there."""
    if txn is None:
        return 0
    texts = 2 * len(txn.transactional_id) + len(txn.attempt)
    return ID_BYTES + texts + PARTITION_BYTES * len(txn.partitions) + TOPIC_BYTES * len(txn.topic_ids)


def attempt_bytes(state: AttemptState | None) -> int:
    """Return what a key of shared transactions holds; 0 for one that is not there."""
    if state is None:
        return 0
    texts = (state.attempt, state.token, state.run, *state.retired, *state.retired_runs)
    return KEY_BYTES + 2 * len(state.key) + sum(_TEXT_BYTES + len(text) for text in texts if text)


def decision_bytes(decision: CommitDecision | None) -> int:
    """Return what a commit holds that is remembered; 0 for one that is not."""
    if decision is None:
        return 0
    return COMMIT_BYTES + 2 * len(decision.token) + len(decision.payload) + len(decision.attempt)


def _code_of(request: Any) -> ErrorCode:
    if isinstance(request, WithProducerId):
        return _code_of(request.request)
    if isinstance(request, (EndTxnRequest, CommitSharedRequest, AddPartitionsToTxnRequest)):
        return ErrorCode.TRANSACTION_ABORTABLE
    return ErrorCode.POLICY_VIOLATION
