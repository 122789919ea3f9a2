"""Databases, exactly once: rows and offsets in one database transaction (E3), and an outbox table into topics.

`semel.sql` has the public names. Not imported by `import semel`, nor by anything else of the SDK.
"""
