# C types for flushes.py.
cimport cython


@cython.final
cdef class Flushes:
    cdef object _call_soon
    cdef list _waiting
    cdef bint _is_scheduled
    cdef Py_ssize_t _last
    cdef double _last_at
    cdef double _first_at

    @cython.locals(others=cython.bint)
    cpdef object flush(self, object connection, Py_ssize_t number, double now)
    @cython.locals(waiting=list)
    cpdef object _flush_all(self)
