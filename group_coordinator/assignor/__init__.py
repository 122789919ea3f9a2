"""Partition assignors: range, round-robin, sticky and cooperative-sticky."""
