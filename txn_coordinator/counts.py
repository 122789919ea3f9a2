"""What is counted about a node's transactions, for its metrics. One for all machines, which come and go."""

from __future__ import annotations

from dataclasses import dataclass, field

from semel.runtime.refusals import Refusals


@dataclass(slots=True)
class TransactionCounts:
    """Counts since the node was started.

    timeouts:         transactions aborted because their time was over (T9).
    fencings_taken:   epochs taken from their holder, with a transaction open (T5, T9).
    fencings_refused: calls of producers that were told that they are fenced.
    refusals:         what was refused for a bound of transactional ids and shared transactions.
    """

    timeouts: int = 0
    fencings_taken: int = 0
    fencings_refused: int = 0
    refusals: Refusals = field(default_factory=Refusals)
