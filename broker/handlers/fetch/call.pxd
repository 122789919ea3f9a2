# C types for call.py.
cimport cython
from libc.stdint cimport int64_t

from semel.protocol.kafka.fetch cimport FetchRequest


@cython.final
cdef class FetchCall:
    cdef object __weakref__
    cdef public FetchRequest request
    cdef public object rights
    cdef public Py_ssize_t min_bytes
    cdef public Py_ssize_t bytes_max
    cdef public int version
    cdef public object context
    cdef public object done
    cdef public bint finished
    cdef public int64_t begun_ms
    cdef public object silent_max_s
    cdef public object usage
    cdef public object listener_name
    cdef public int64_t records


@cython.final
cdef class Found:
    cdef object __weakref__
    cdef public list responses
    cdef public list sources
    cdef public Py_ssize_t read_bytes
    cdef public Py_ssize_t left
    cdef public Py_ssize_t inline_left
    cdef public bint answer_now
