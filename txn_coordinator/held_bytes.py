"""What transactional ids, shared transactions and remembered commits hold in memory, about; and the bound of it (S2).

Only what makes them larger is refused, and what is new is refused first: ids and keys that are known have a tenth of
the room to themselves, so that strangers with new ones do not stop them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from semel.protocol.api.shared_transactions import CommitDecision, CommitSharedRequest, OpenSharedRequest
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from semel.protocol.errors import ErrorCode
from semel.txn_coordinator.commit_records import AttemptState
from semel.txn_coordinator.effects import WithProducerId
from semel.txn_coordinator.producer_identity import refuse
from semel.txn_coordinator.state import TransactionMetadata

ID_BYTES: Final = 900
"""A transactional id with its state, its producer, its client and its timers, without its text."""
PARTITION_BYTES: Final = 170
"""A partition in a transaction."""
KEY_BYTES: Final = 700
"""A key of shared transactions."""
COMMIT_BYTES: Final = 500
"""A commit that is remembered, without its token and payload."""
_TEXT_BYTES: Final = 60


class HeldBytes:
    """What the machine of one partition of `__transaction_state` holds."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class Growth(NamedTuple):
    """How many bytes more there would be, and whether they are for an id or a key that is not known yet."""

    bytes: int
    is_new: bool


class Room:
    """Says whether there is room for more, in all partitions of this node together."""

    def __init__(self, bytes_max: int, held_by_all: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        self._held_by_all = held_by_all

    def refuse(self, request: Any, growth: Growth) -> None:
        """Raise `RefusalError` where what a request makes larger has no room."""
        bytes_max = self._bytes_max - (self._bytes_max // 10 if growth.is_new else 0)
        if growth.bytes <= 0 or (held := self._held_by_all()) + growth.bytes <= bytes_max:
            return
        raise refuse(
            _code_of(request),
            f"the transactional ids, open transactions and remembered commits of this node hold {held} bytes of "
            f"{self._bytes_max} (transactional.ids.max.bytes), and {growth.bytes} more are too many: use fewer "
            "transactional ids, or raise the setting. Ids that are not used expire (transactional.id.expiration.ms)",
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
    return ID_BYTES + 2 * len(txn.transactional_id) + len(txn.attempt) + PARTITION_BYTES * len(txn.partitions)


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
    if isinstance(request, (EndTxnRequest, CommitSharedRequest)):
        return ErrorCode.TRANSACTION_ABORTABLE
    if isinstance(request, AddPartitionsToTxnRequest):
        return ErrorCode.MESSAGE_TOO_LARGE
    return ErrorCode.POLICY_VIOLATION
