"""Whose a data directory is: one node's, or that of the nodes of `semel serve --nodes`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_NODE_FILE: Final = "meta.properties"
"""Every node has it in its data directory, from its first start on."""


def is_node_folder(path: str) -> bool:
    """Say whether one node keeps its data here."""
    return (Path(path) / _NODE_FILE).exists()


def is_cluster_folder(path: str) -> bool:
    """Say whether `--nodes` keeps the directories of its nodes here."""
    return not is_node_folder(path) and any(Path(path).glob(f"node-*/{_NODE_FILE}"))
