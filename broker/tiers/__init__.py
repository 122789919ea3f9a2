"""Tiered storage (KIP-405): closed segments in an object store, and reading them from there."""
