"""Error codes of the transactional APIs, as each version of a request knows them.

PRODUCER_FENCED came with KIP-588: older versions get INVALID_PRODUCER_EPOCH, the same to their clients.
TRANSACTION_ABORTABLE came with KIP-890: older versions get INVALID_TXN_STATE.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class TransactionCodes:
    """The first versions of one API whose clients know each code."""

    fenced_from: int
    abortable_from: int

    def known(self, code: ErrorCode, version: int) -> ErrorCode:
        """Return `code`, or what a client of this version takes for it."""
        if code is ErrorCode.PRODUCER_FENCED and version < self.fenced_from:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if code is ErrorCode.TRANSACTION_ABORTABLE and version < self.abortable_from:
            return ErrorCode.INVALID_TXN_STATE
        return code
