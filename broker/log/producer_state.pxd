# C types for producer_state.py.
cimport cython

from semel.protocol.batch_header cimport BatchHeader

cdef Py_ssize_t _PACKED_MAX
cdef Py_ssize_t _ACTIVE_MS
cdef Py_ssize_t _EPOCH
cdef Py_ssize_t _COORDINATOR_EPOCH
cdef Py_ssize_t _FIRST_OFFSET
cdef Py_ssize_t _LAST_SEQUENCE


@cython.locals(entries=dict, entry=tuple, fields=tuple)
cdef _apply_batch(
    state, producer_id, epoch, first_sequence, last_sequence, first_offset, last_offset, timestamp_ms,
    transactional, now_ms,
)
@cython.locals(header=BatchHeader, number=cython.Py_ssize_t, count=cython.Py_ssize_t)
cdef Py_ssize_t _apply_run(state, list headers, Py_ssize_t begin, now_ms) except -1
