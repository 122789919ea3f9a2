cimport cython
from libc.stdint cimport uint8_t, uint32_t
from semel.protocol.buffers cimport address_of

ctypedef uint32_t (*extend_function)(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil

cdef size_t _address


cdef inline uint32_t call_native(size_t address, const unsigned char *data, Py_ssize_t size):
    return (<extend_function> address)(0, data, size)


@cython.locals(size=cython.Py_ssize_t)
cpdef crc32c(buffer, Py_ssize_t start=*, Py_ssize_t end=*)
