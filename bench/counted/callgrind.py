"""Counting the instructions of a part of a program, from inside of it: client requests of valgrind's callgrind.

Valgrind looks for a sequence of instructions that does nothing on the machine itself. Its header for C is not needed
for that: the sequence is put into memory and called. See "The Client Request mechanism" in valgrind's manual.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
from pathlib import Path
from typing import Final

MACHINES: Final = ("x86_64", "AMD64")
"""Where the sequence below is that of the processor."""

_CALL: Final = bytes.fromhex(
    "4889f8"  # mov rax, rdi: the request and its five arguments
    "31d2"  # xor edx, edx: what is answered without valgrind
    "48c1c703 48c1c70d 48c1c73d 48c1c733"  # rol rdi by 3, 13, 61 and 51: 128 in all, which changes nothing
    "4887db"  # xchg rbx, rbx: here valgrind looks
    "4889d0"  # mov rax, rdx
    "c3"  # ret
)
_BASE: Final = ord("C") << 24 | ord("T") << 16
_ZERO: Final = _BASE + 1
_DUMP_AT: Final = _BASE + 3
_START: Final = _BASE + 4
_STOP: Final = _BASE + 5
_RUNNING_ON_VALGRIND: Final = 0x1001


class Callgrind:
    """Callgrind as the program that it runs sees it. Without valgrind its calls do nothing."""

    def __init__(self) -> None:
        if platform.machine() not in MACHINES:
            raise OSError(f"instructions are counted on {' and '.join(MACHINES)}, not on {platform.machine()}")
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(_CALL)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._call = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t))(address)

    @property
    def is_running(self) -> bool:
        return self._ask(_RUNNING_ON_VALGRIND) > 0

    def start(self) -> None:
        """Count from here on, from zero."""
        self._ask(_START)
        self._ask(_ZERO)

    def stop(self, name: str) -> None:
        """Write what was counted since `start` to the next file, under this name, and count no further."""
        text = ctypes.create_string_buffer(name.encode())
        self._ask(_DUMP_AT, ctypes.addressof(text))
        self._ask(_STOP)

    def _ask(self, request: int, argument: int = 0) -> int:
        answer: int = self._call((ctypes.c_size_t * 6)(request, argument))
        return answer


def read_counts(out_file: Path) -> dict[str, list[int]]:
    """Return what the files that `stop` has written say: for each name the instructions, in the order of the calls."""
    counts: dict[str, list[int]] = {}
    files = out_file.parent.glob(f"{out_file.name}.*")
    for file in sorted(files, key=lambda one: int(one.suffix[1:])):
        text = file.read_text(errors="replace")
        name = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
        total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
        if name is not None and total is not None:
            counts.setdefault(name[1], []).append(int(total[1]))
    return counts
