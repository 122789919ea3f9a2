# C types for segment.py.
cimport cython

cdef Py_ssize_t _UNKNOWN
cdef Py_ssize_t _RELATIVE_MAX


cdef class Segment:
    cdef public object _file
    cdef public object _files
    cdef public object _first_timestamp_ms
    cdef public object _max_timestamp
    cdef public Py_ssize_t _size
    cdef public object _storage
    cdef public Py_ssize_t _unindexed_bytes
    cdef public Py_ssize_t base_offset
    cdef public object created_ms
    cdef public Py_ssize_t end_offset
    cdef public object folder
    cdef public object offsets
    cdef public object suffix
    cdef public object times
    cdef public object transactions

    @cython.locals(position=cython.Py_ssize_t)
    cpdef Py_ssize_t append(
        self, object buffers, Py_ssize_t size, Py_ssize_t last_offset, Py_ssize_t max_timestamp_ms,
        Py_ssize_t index_interval_bytes,
    ) except -1
    @cython.locals(largest=tuple, largest_ms=cython.Py_ssize_t)
    cpdef object note_batches(
        self, Py_ssize_t position, Py_ssize_t size, Py_ssize_t last_offset, Py_ssize_t max_timestamp_ms,
        Py_ssize_t index_interval_bytes,
    )
    @cython.locals(mine=cython.Py_ssize_t)
    cpdef bint should_roll(
        self, Py_ssize_t size, Py_ssize_t last_offset, Py_ssize_t max_timestamp_ms, Py_ssize_t now_ms, object config
    ) except -1
