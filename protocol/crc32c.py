# cython: annotation_typing=False
"""CRC-32C (Castagnoli), the checksum of record batches, computed by the native library in `google-crc32c`.

Its Python binding takes `bytes` only, so a part of a buffer would have to be copied first. Compiled, this module calls
the same library's C function by its address instead; where that can't be found, and interpreted, it copies.
"""

from __future__ import annotations

import ctypes
from typing import TypeAlias

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython
import google_crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview


def _native_address() -> int:
    """Return the address of `crc32c_extend` in the library that `google_crc32c` has loaded, or 0."""
    try:
        from google_crc32c import _crc32c

        function = ctypes.PyDLL(_crc32c.__file__).crc32c_extend
    except (ImportError, OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_address = _native_address() if cython.compiled else 0

if not cython.compiled:

    def address_of(view: memoryview) -> int:
        raise AssertionError(f"the address of {view!r} is asked for in compiled code only")

    def call_native(address: int, data: int, size: int) -> int:
        raise AssertionError(f"{address:#x} is called from compiled code only ({data:#x}, {size})")


def crc32c(buffer: Buffer, start: int = 0, end: int = -1) -> int:
    """Return the CRC-32C of `buffer[start:end]`, by default of all of it. Raises `ValueError` outside the buffer."""
    size = len(buffer)
    if end < 0:
        end = size
    if not 0 <= start <= end <= size:
        raise ValueError(f"{start}:{end} is not within a buffer of {size} bytes")
    if _address != 0 and start < end:
        view = memoryview(buffer)
        return call_native(_address, address_of(view) + start, end - start)
    if isinstance(buffer, bytes) and end - start == size:
        return int(google_crc32c.value(buffer))
    return int(google_crc32c.value(bytes(memoryview(buffer)[start:end])))
