# C types for registry.py.
cimport cython


@cython.final
cdef class RequestContext:
    cdef object __weakref__
    cdef public object _connection
    cdef public bint _exclusive
    cdef public bint answered
    cdef public int api_key
    cdef public int api_version
    cdef public double begun
    cdef public object client_id
    cdef public object correlation_id
    cdef public object node
    cdef public object on_close
    cdef public object parts
    cdef public Py_ssize_t reserved
    cdef public object trace
    cdef public object usage
