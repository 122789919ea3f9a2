# C types for append_validation.py.
from semel.protocol.batch_header cimport BatchHeader

cdef Py_ssize_t _FOR_THE_BROKER
cdef Py_ssize_t _TRANSACTIONAL


cpdef object read_plain(object buffer, object config)
cpdef bint is_plain(BatchHeader header, object config) except -1
