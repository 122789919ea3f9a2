# The few C calls that the codecs need. Interpreted, each module that uses them has a Python function of the same name.
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp, memcpy

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)
    int PyBuffer_IsContiguous(const Py_buffer *view, char order)
    char *PyByteArray_AS_STRING(object buffer)
    char *PyBytes_AS_STRING(object buffer)
    void PyObject_GC_UnTrack(void *thing)
    bytes PyBytes_FromStringAndSize(const char *data, Py_ssize_t size)


cdef inline const unsigned char *address_of(object view) except? NULL:
    # The caller keeps `view` alive, which also keeps a bytearray below it from being resized.
    cdef Py_buffer *buffer = PyMemoryView_GET_BUFFER(view)
    if buffer.itemsize != 1 or not PyBuffer_IsContiguous(buffer, b"C"):
        raise ValueError("the buffer must be contiguous bytes")
    return <const unsigned char *> buffer.buf


cdef inline unsigned char *writable_address_of(object buffer):
    return <unsigned char *> PyByteArray_AS_STRING(buffer)


cdef inline bytes take_bytes(const unsigned char *data, Py_ssize_t start, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *> data + start, size)


cdef inline void untrack(object thing):
    PyObject_GC_UnTrack(<void *> thing)


cdef inline const unsigned char *source_of(object field):
    if field is None:
        return NULL
    return <const unsigned char *> PyBytes_AS_STRING(field)


cdef inline const unsigned char *part_source(object view) except? NULL:
    return address_of(view)


cdef inline const int64_t *int64_at(object view) except? NULL:
    if view is None:
        return NULL
    return <const int64_t *> _address(view)


cdef inline const int32_t *int32_at(object view) except? NULL:
    return <const int32_t *> _address(view)


cdef inline const void *_address(object view) except? NULL:
    cdef Py_buffer *buffer = PyMemoryView_GET_BUFFER(view)
    if not PyBuffer_IsContiguous(buffer, b"C"):
        raise ValueError("the buffer must be contiguous")
    return buffer.buf


cdef inline void put_part(
    unsigned char *data, Py_ssize_t position, const unsigned char *source, Py_ssize_t start, Py_ssize_t size
):
    memcpy(data + position, source + start, size)


cdef inline bint are_same(
    const unsigned char *one, Py_ssize_t at, const unsigned char *other, Py_ssize_t position, Py_ssize_t size
):
    return memcmp(one + at, other + position, size) == 0


cdef inline unsigned char *bytes_of(object buffer) except? NULL:
    return <unsigned char *> _writable_address(buffer)


cdef inline int64_t *int64s_of(object buffer) except? NULL:
    return <int64_t *> _writable_address(buffer)


cdef inline int32_t *int32s_of(object buffer) except? NULL:
    return <int32_t *> _writable_address(buffer)


cdef inline void *_writable_address(object view) except? NULL:
    cdef Py_buffer *buffer = PyMemoryView_GET_BUFFER(view)
    if buffer.readonly or not PyBuffer_IsContiguous(buffer, b"C"):
        raise ValueError("the buffer must be writable and contiguous")
    return buffer.buf
