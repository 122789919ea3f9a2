# C types for journal_format.py.
cimport cython
from libc.stdint cimport int64_t

from semel.protocol.crc32c cimport crc32c

cdef Py_ssize_t _HEADER_BYTES
cdef dict _TYPES


@cython.final
cdef class JournalEntry:
    cdef readonly object type
    cdef readonly int64_t sequence
    cdef readonly int64_t durable_position
    cdef readonly bytes place
    cdef readonly int64_t base_offset
    cdef readonly int64_t payload_checksum
    cdef readonly int64_t length
    cdef readonly int64_t mark
    cdef readonly bytes data
    cdef readonly Py_ssize_t payload_at
    cdef readonly int64_t end_position


@cython.locals(entry=JournalEntry, payload_at=cython.Py_ssize_t)
cpdef JournalEntry read_entry_header(bytes data, Py_ssize_t position=*)
@cython.locals(entry=JournalEntry, size=cython.Py_ssize_t, position=cython.Py_ssize_t, end=cython.Py_ssize_t)
cpdef tuple read_entries(bytes data, int64_t sequence, int64_t end_position, int64_t mark)
@cython.locals(entry=JournalEntry, one=list, found=dict)
cpdef dict by_place(list entries)
