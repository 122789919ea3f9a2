"""The producer, and its transactions."""
