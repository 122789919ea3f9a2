# C types for batch_scan.py.
cimport cython
from libc.stdint cimport int64_t

from semel.protocol.batch_header cimport BatchHeader, read_header

cdef Py_ssize_t _OVERHEAD


@cython.locals(reader=_HeaderReader, header=BatchHeader, size=int64_t, next_offset=int64_t, first_size=int64_t)
cpdef tuple whole_batches(file, Py_ssize_t position, Py_ssize_t end, Py_ssize_t start, Py_ssize_t limit)


@cython.final
cdef class _HeaderReader:
    cdef object _file
    cdef Py_ssize_t _end
    cdef Py_ssize_t _chunk_bytes
    cdef bytes _chunk
    cdef Py_ssize_t _chunk_at
    cdef Py_ssize_t _chunk_end

    @cython.locals(left=cython.Py_ssize_t, header=BatchHeader)
    cpdef BatchHeader read(self, Py_ssize_t position)
