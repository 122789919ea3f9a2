"""A node that dies, as by SIGKILL, once it should write the markers of a decision: `traced_node.py FILE serve ...`.

It does so where FILE is there, which it removes: the decision is durable then, and nobody has heard of it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.cli.main import main
from semel.protocol.api.transactions import TxnMarker
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition


def plant(armed: Path) -> None:
    write = LocalMarkerWriter.write_markers

    def die_if_armed() -> None:
        if armed.exists():
            armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    async def write_or_die(self: LocalMarkerWriter, marker: TxnMarker) -> Mapping[TopicPartition, ErrorCode]:
        die_if_armed()
        return await write(self, marker)

    LocalMarkerWriter.write_markers = write_or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    plant(Path(sys.argv.pop(1)))
    main()
