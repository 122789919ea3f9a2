"""Replication: a node's part in each partition, and the fetches by which it follows those that others lead."""
