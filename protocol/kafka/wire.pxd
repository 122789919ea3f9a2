# C types for wire.py.
cimport cython
from libc.stdint cimport int64_t

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize
from libc.string cimport memcpy

cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object view)
    char* PyByteArray_AS_STRING(object buffer)
    object PyUnicode_DecodeUTF8(const char* text, Py_ssize_t size, const char* errors)

cdef inline const unsigned char* address_of(object view):
    return <const unsigned char*> PyMemoryView_GET_BUFFER(view).buf

cdef inline unsigned char* writable_address_of(object buffer):
    return <unsigned char*> PyByteArray_AS_STRING(buffer)

cdef inline int copy_into(unsigned char* target, Py_ssize_t position, object source, Py_ssize_t size) except -1:
    cdef Py_buffer view
    if PyBytes_CheckExact(source):
        memcpy(target + position, PyBytes_AS_STRING(source), size)
        return 0
    PyObject_GetBuffer(source, &view, PyBUF_SIMPLE)
    if view.len == size:
        memcpy(target + position, view.buf, size)
    PyBuffer_Release(&view)
    if view.len != size:
        raise ValueError("a buffer of bytes is needed")
    return 0

cdef inline bytes bytes_of(object buffer, Py_ssize_t size):
    return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(buffer), size)

cdef inline object decode_utf8(const unsigned char* data, Py_ssize_t position, Py_ssize_t size):
    return PyUnicode_DecodeUTF8(<const char*> data + position, size, NULL)

cdef int64_t _UINT32
cdef int64_t _SIGN

@cython.final
cdef class WireReader:
    cdef public object view
    cdef const unsigned char* data
    cdef public Py_ssize_t size
    cdef public Py_ssize_t position
    cdef public int64_t entries_max
    cdef int64_t _entries_left

    @cython.locals(position=cython.Py_ssize_t)
    cpdef Py_ssize_t need(self, Py_ssize_t count) except -1
    cpdef Py_ssize_t remaining(self)
    @cython.locals(value=cython.int)
    cpdef int read_int8(self) except? -1
    @cython.locals(at=cython.Py_ssize_t, value=cython.int)
    cpdef int read_int16(self) except? -1
    @cython.locals(value=int64_t)
    cpdef int64_t read_int32(self) except? -1
    @cython.locals(at=cython.Py_ssize_t, data=cython.p_const_uchar, high=int64_t, low=int64_t)
    cpdef int64_t read_uint32(self) except -1
    @cython.locals(high=int64_t)
    cpdef int64_t read_int64(self) except? -1
    @cython.locals(value=int64_t, shift=cython.int, byte=int64_t)
    cpdef int64_t read_uvarint(self) except -1
    cpdef bint read_bool(self) except? -1
    cpdef Py_ssize_t read_length(self, bint flexible) except? -1
    cpdef Py_ssize_t read_long_length(self, bint flexible) except? -1
    cpdef object read_string(self, bint flexible)
    @cython.locals(length=cython.Py_ssize_t)
    cpdef object read_nullable_string(self, bint flexible)
    @cython.locals(at=cython.Py_ssize_t)
    cpdef object _read_text(self, Py_ssize_t length)
    @cython.locals(length=cython.Py_ssize_t, at=cython.Py_ssize_t)
    cpdef object read_records(self, bint flexible)
    @cython.locals(at=cython.Py_ssize_t)
    cpdef object read_fixed(self, Py_ssize_t count)
    @cython.locals(count=cython.Py_ssize_t)
    cpdef Py_ssize_t read_count(self, bint flexible, Py_ssize_t element_bytes_min) except? -1
    cdef int _count_entries(self, int64_t count) except -1
    @cython.locals(count=int64_t)
    cpdef int skip_tagged_fields(self) except -1
    @cython.locals(count=int64_t)
    cpdef int64_t read_tag_count(self) except -1
    cpdef int expect_end(self) except -1

@cython.final
cdef class WireWriter:
    cdef bytearray buffer
    cdef unsigned char* data
    cdef Py_ssize_t capacity
    cdef Py_ssize_t position
    cdef list parts
    cdef Py_ssize_t parts_bytes

    @cython.locals(position=cython.Py_ssize_t, capacity=cython.Py_ssize_t)
    cpdef Py_ssize_t reserve(self, Py_ssize_t count) except -1
    @cython.locals(at=cython.Py_ssize_t)
    cpdef int write_int8(self, int value) except -1
    @cython.locals(at=cython.Py_ssize_t, data=cython.p_uchar)
    cpdef int write_int16(self, int value) except -1
    @cython.locals(at=cython.Py_ssize_t, data=cython.p_uchar)
    cpdef int write_int32(self, int64_t value) except -1
    @cython.locals(at=cython.Py_ssize_t, data=cython.p_uchar)
    cpdef int write_int64(self, int64_t value) except -1
    cpdef int write_uvarint(self, int64_t value) except -1
    cpdef int write_length(self, Py_ssize_t length, bint flexible) except -1
    cpdef int write_count(self, Py_ssize_t count, bint flexible) except -1
    @cython.locals(size=cython.Py_ssize_t)
    cpdef object write_string(self, object text, bint flexible)
    @cython.locals(at=cython.Py_ssize_t, count=cython.Py_ssize_t)
    cpdef int write_fixed(self, object data) except -1
    @cython.locals(size=cython.Py_ssize_t)
    cpdef object write_records(self, object records, bint flexible)
    cpdef int write_no_tags(self) except -1
    cpdef int begin_request(self, int api_key, int api_version, int64_t correlation_id, object client_id, bint flexible) except -1
    cpdef int begin_response(self, int64_t correlation_id, bint flexible) except -1
    cpdef object _close_part(self)
    cpdef list finish(self)
    @cython.locals(size=cython.Py_ssize_t, end=cython.Py_ssize_t)
    cpdef list finish_frame(self)

@cython.final
cdef class RequestHeader:
    cdef public int api_key
    cdef public int api_version
    cdef public int64_t correlation_id
    cdef public object client_id
    cdef public Py_ssize_t body
    cdef public object trace

@cython.locals(first=tuple)
cpdef bint is_flexible(int api_key, int api_version) except -1

@cython.locals(reader=WireReader, api_key=cython.int, api_version=cython.int, correlation_id=int64_t, tag=int64_t,
               size=int64_t, start=cython.Py_ssize_t, header=RequestHeader)
cpdef RequestHeader parse_request_header(object buffer, Py_ssize_t position=*)
