# C types for output.py.
cimport cython


@cython.final
cdef class Output:
    cdef public object _transport
    cdef public int _descriptor
    cdef public bint use_sendfile
    cdef public object _threads
    cdef object _when_told
    cdef public object _sending
    cdef Py_ssize_t _sent_before
    cdef object _failure
    cdef Py_ssize_t _large_ranges
    cdef public object _parts
    cdef public object _range
    cdef public Py_ssize_t _range_position
    cdef public Py_ssize_t _range_end
    cdef public int _range_source
    cdef public bint writable
    cdef public Py_ssize_t queued_bytes
    cdef public Py_ssize_t sent_bytes
    cdef public Py_ssize_t sendfile_bytes

    cpdef object add(self, object parts)
    cpdef bint _hand_over(self, double now) except -1
    cpdef bint settle(self) except -1
    cpdef bint _settle(self) except -1
    @cython.locals(size=cython.Py_ssize_t, batch=list)
    cpdef object _send_next(self)
    @cython.locals(sent=cython.Py_ssize_t)
    cpdef object _send(self, list batch, Py_ssize_t size)
    cpdef object _sent(self, Py_ssize_t size)
    cpdef object _wait_for_room(self, list batch, Py_ssize_t sent)
    @cython.locals(size=cython.Py_ssize_t)
    cpdef object _begin_range(self, object part)
    @cython.locals(left=cython.Py_ssize_t, position=cython.Py_ssize_t, sent=cython.Py_ssize_t, source=cython.int)
    cpdef object _send_range(self, object part)
