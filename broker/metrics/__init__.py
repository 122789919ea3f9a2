"""A node's metrics: read from its parts, and given to those who ask."""
