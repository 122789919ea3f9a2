"""A node that dies, as by SIGKILL, at a chosen change of its disk: `crashing_node.py POINT COUNT_FILE serve ...`.

Changes are counted from the start: writes, syncs, truncations, renames and removals. At the POINT-th the process ends
before the change is made; POINT 0 never. The count so far is kept in COUNT_FILE.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

from semel.cli.main import main
from semel.runtime.disk_storage import DiskFile, DiskStorage

COUNT = struct.Struct("<q")
DIED = 9
"""The exit code of a node that died at its point."""


def plant(point: int, count_file: str) -> None:
    with open(count_file, "wb") as file:
        file.write(COUNT.pack(0))
    descriptor = os.open(count_file, os.O_RDWR)
    shared = mmap.mmap(descriptor, COUNT.size)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            (count,) = COUNT.unpack_from(shared)
            count += 1
            COUNT.pack_into(shared, 0, count)
            if count == point:
                os._exit(DIED)
            return function(*args, **kwargs)

        return call

    for name in ("append", "write_at", "write_many_at", "truncate", "sync"):
        setattr(DiskFile, name, counted(getattr(DiskFile, name)))
    for name in ("rename", "remove", "remove_tree", "sync_folder"):
        setattr(DiskStorage, name, counted(getattr(DiskStorage, name)))


if __name__ == "__main__":
    plant(int(sys.argv.pop(1)), sys.argv.pop(1))
    main()
