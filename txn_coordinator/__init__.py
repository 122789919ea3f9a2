"""The transaction coordinator: two-phase commit with markers over partitions."""
