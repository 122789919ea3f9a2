"""What nodes that have ended have left in their remote storage, held against what the database tells of it."""

from __future__ import annotations

import shutil

from node_processes import NodeProcesses

from semel.broker.inspection.findings import Severity
from semel.broker.inspection.verify import verify


def assert_sound_store(nodes: NodeProcesses, metadata_url: str, remote_url: str) -> None:
    """Have every object read: what rows tell of is there and whole."""
    report = verify(str(nodes.data_dir(1)), metadata_url=metadata_url, deep=True, remote_storage=remote_url)
    assert [str(one) for one in report.findings if one.severity is not Severity.NOTE] == []


def leave_nothing(nodes: NodeProcesses) -> None:
    """Remove what diskless nodes have on their disks: only the metadata tells that those are copies."""
    for node_id in nodes.kafka:
        shutil.rmtree(nodes.data_dir(node_id))
