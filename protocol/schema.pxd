# C types for schema.py.
cimport cython


@cython.final
cdef class Reader:
    cdef object _buffer
    cdef Py_ssize_t _position
    cdef Py_ssize_t _end

    @cython.locals(start=cython.Py_ssize_t)
    cdef Py_ssize_t _take(self, Py_ssize_t size) except? -1
    cpdef object int16(self)
    cpdef object int32(self)
    cpdef object unsigned_varint(self)
    @cython.locals(start=cython.Py_ssize_t, first=cython.int)
    cdef object _varint(self, int size_max, int bits)
    @cython.locals(start=cython.Py_ssize_t)
    cdef str _text(self, Py_ssize_t size)
    @cython.locals(start=cython.Py_ssize_t)
    cdef bytes _bytes(self, Py_ssize_t size)
    cdef object _present(self, object size, str kind)
    cdef list _items(self, object count, object item)
    cdef object _field_count(self)


@cython.final
cdef class Writer:
    cdef bytearray _buffer

    cdef object _pack(self, object kind, object value)
    cpdef object int32(self, object value)
    cpdef object int16(self, object value)
    cpdef object unsigned_varint(self, object value)
    cdef object _varint(self, object value)
    cpdef object array(self, object items, object write)
    cpdef object compact_array(self, object items, object write)
