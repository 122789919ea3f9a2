"""The features that a node tells clients of (KIP-584). They are as its version has them, and nobody changes them."""

from __future__ import annotations

from typing import Final

from semel.protocol.kafka.api import SupportedFeature

TRANSACTIONS: Final = SupportedFeature("transaction.version", 0, 2)
"""2: transactions have an epoch of their own each (KIP-890)."""
GROUPS: Final = SupportedFeature("group.version", 0, 1)
"""1: groups can be of the new kind (KIP-848)."""

FEATURES: Final = (TRANSACTIONS, GROUPS)
