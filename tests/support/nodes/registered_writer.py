"""Nodes that may write metadata, by the row that their registration would have made: their logs begin with the test's
own changes. And time that passes in a database.
"""

from __future__ import annotations

from restored_database import run_sql

from semel.broker.metadata.metadata import Metadata
from semel.broker.metadata.runs import Writer


def let_write(url: str, node_id: int = 1, epoch: int = 1) -> Writer:
    """Return the writer that a node is. A node that is in the database already stays as it is there."""
    run_sql(
        url,
        "INSERT INTO semel_nodes (node_id, broker_epoch, incarnation, directory_id, heartbeat_at_ms, seen_sequence) "
        f"SELECT {node_id}, {epoch}, 'first', 'directory', 0, 0 "
        f"WHERE NOT EXISTS (SELECT 1 FROM semel_nodes WHERE node_id = {node_id})",
    )
    return Writer(node_id, epoch)


def let_metadata_write(metadata: Metadata, url: str, node_id: int = 1) -> None:
    """Let opened metadata write as a node."""
    metadata._writer = let_write(url, node_id)
    metadata._registered.set()


def pass_time(url: str, ms: int) -> None:
    """Let time pass for leases and heartbeats, whose time is the database's."""
    run_sql(
        url,
        f"UPDATE semel_leases SET expires_at_ms = expires_at_ms - {ms}",
        f"UPDATE semel_nodes SET heartbeat_at_ms = heartbeat_at_ms - {ms}",
    )
