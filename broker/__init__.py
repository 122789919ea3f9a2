"""A node: logs, metadata, request handlers and listeners."""
