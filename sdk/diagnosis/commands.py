"""Commands that need to be given where a node runs: with what says which node's they are."""

from __future__ import annotations

from typing import Final

from semel.protocol.api.diagnostics import NodeSnapshot, OfflinePartition
from semel.protocol.wording import command, partition_argument

NEEDS_HELP: Final = frozenset({"damaged", "vanished"})
"""Kinds of offline partitions that the node can't bring back alone."""


def serve_command(node: NodeSnapshot, *words: str) -> str:
    """Return the command that starts a node: with its own data directory, and the configuration file that it had."""
    config = ("--config", node.config_file) if node.config_file else ()
    return command("serve", *config, "--data-dir", node.disk.data_dir, *words)


def verify_command(node: NodeSnapshot) -> str:
    """Return the command that checks a node's data directory. A cluster's metadata is not in it."""
    where = ("--metadata-url", "URL") if len(node.nodes) > 1 else ()
    return command("log", "verify", node.disk.data_dir, *where)


def fix_commands(node: NodeSnapshot, offline: OfflinePartition) -> tuple[str, ...]:
    """Return what to do about an offline partition: look, and where only that is left, accept the loss."""
    look = verify_command(node)
    if offline.kind not in NEEDS_HELP:
        return (look,)
    return look, serve_command(node, "--accept-loss-of", partition_argument(offline.partition))
