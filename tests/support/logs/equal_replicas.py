"""Compares the logs that several nodes have left, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from semel.broker.inspection.file_kinds import log_name
from semel.protocol.batch_header import iter_batches
from semel.protocol.ids import INTERNAL_TOPICS


def assert_replicas_are_equal(data_dirs: Iterable[Path]) -> None:
    """Compare what nodes that have ended have of each partition. Each of them must have all.

    Coordinators write until their node has ended, so the logs of the last one may have more at their ends.
    """
    found = [_logs(data) for data in data_dirs]
    assert found
    assert any(batches for batches in found[0].values()), "there is nothing to compare"
    for one, other in pairwise(found):
        assert one.keys() == other.keys()
        for name, batches in one.items():
            length = min(len(batches), len(other[name]))
            assert batches[:length] == other[name][:length], f"replicas of {name} differ"
            if not name.startswith(tuple(INTERNAL_TOPICS)):
                assert len(batches) == len(other[name]), f"replicas of {name} end at different places"


def _logs(data: Path) -> dict[str, list[bytes]]:
    """Return the batches of each partition in a data directory, in order."""
    logs: dict[str, list[bytes]] = {}
    for folder in sorted(data.iterdir()):
        if log_name(folder.name) is not None:
            batches = logs[folder.name] = []
            for segment in sorted(folder.glob("*.log")):
                content, position = segment.read_bytes(), 0
                for header in iter_batches(content):
                    batches.append(content[position : position + header.size_bytes])
                    position += header.size_bytes
                assert position == len(content), f"{segment} ends in half a batch"
    return logs
