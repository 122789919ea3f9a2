"""Produce: a request on its way, the checks of its batches, and the gate of transactions."""
