"""What is counted about a node's transactions, for its metrics. One for all machines, which come and go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TransactionCounts:
    """Counts since the node was started.

    timeouts:         transactions aborted because their time was over (T9).
    fencings_taken:   epochs taken from their holder, with a transaction open (T5, T9).
    fencings_refused: calls of producers that were told that they are fenced.
    """

    timeouts: int = 0
    fencings_taken: int = 0
    fencings_refused: int = 0
