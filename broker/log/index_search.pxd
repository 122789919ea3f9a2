# C types for index_search.py.
cimport cython
from libc.stdint cimport int64_t

from semel.protocol.buffers cimport address_of


@cython.locals(
    data=cython.p_const_uchar, begin=cython.Py_ssize_t, end=cython.Py_ssize_t, low=cython.Py_ssize_t,
    high=cython.Py_ssize_t, middle=cython.Py_ssize_t, at=cython.Py_ssize_t,
)
cpdef tuple last_at_most(
    entries, Py_ssize_t count, Py_ssize_t size, Py_ssize_t second_at, int field, int64_t target
)
@cython.locals(value=int64_t)
cdef int64_t _number(const unsigned char *data, Py_ssize_t position, Py_ssize_t end) noexcept
