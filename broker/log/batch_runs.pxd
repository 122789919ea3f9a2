# C types for batch_runs.py.
cimport cython
from libc.stdint cimport int64_t

from semel.protocol.batch_header cimport BatchHeader


@cython.locals(header=BatchHeader, count=cython.Py_ssize_t, number=cython.Py_ssize_t, next_offset=int64_t)
cpdef Py_ssize_t following(list headers, Py_ssize_t begin, int64_t end_offset, int64_t upto) except -1
@cython.locals(header=BatchHeader, count=cython.Py_ssize_t, number=cython.Py_ssize_t)
cpdef Py_ssize_t first_reaching(list headers, int64_t offset) except -1
@cython.locals(header=BatchHeader, count=cython.Py_ssize_t, number=cython.Py_ssize_t)
cpdef Py_ssize_t first_overlapping(list headers, int64_t end_offset) except -1
@cython.locals(header=BatchHeader, count=cython.Py_ssize_t, number=cython.Py_ssize_t)
cpdef Py_ssize_t first_beyond_epoch(list headers, Py_ssize_t begin, int64_t leader_epoch, int64_t start_offset) except -1
@cython.locals(
    header=BatchHeader, count=cython.Py_ssize_t, number=cython.Py_ssize_t,
    size=int64_t, largest=int64_t, offset=int64_t,
)
cpdef tuple stretch(list headers, Py_ssize_t begin, int64_t room)
