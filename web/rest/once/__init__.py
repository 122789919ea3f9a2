"""Requests with an Idempotency-Key: done once, and answered the same each time."""
