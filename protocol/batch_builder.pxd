cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from semel.protocol.buffers cimport int32_at, int64_at, part_source, put_part, source_of, writable_address_of

cdef int64_t _TIMESTAMP_LIMIT
cdef bytearray NO_HEADERS
cdef dict _NAMES

ctypedef const int32_t *int32_pointer
ctypedef const int64_t *int64_pointer


@cython.final
cdef class BinaryColumn:
    cdef object _offsets_view
    cdef object _valid_view
    cdef int32_pointer _offsets
    cdef const unsigned char *_valid
    cdef readonly object data
    cdef readonly Py_ssize_t offset
    cdef readonly Py_ssize_t at
    cdef readonly bint broken
    cdef Py_ssize_t _size

    @cython.locals(place=cython.Py_ssize_t, end=cython.Py_ssize_t)
    cdef inline Py_ssize_t locate(self, Py_ssize_t row) noexcept


@cython.final
cdef class BatchBuilder:
    cdef readonly object compression
    cdef readonly object level
    cdef readonly Py_ssize_t record_count
    cdef readonly int64_t base_timestamp_ms
    cdef readonly int64_t max_timestamp_ms
    cdef readonly int64_t last_offset_delta
    cdef bytearray _buffer
    cdef unsigned char *_data
    cdef Py_ssize_t _position
    cdef Py_ssize_t _capacity

    @cython.locals(delta=int64_t, key_bytes=bytes, value_bytes=bytes)
    cpdef int64_t append(self, int64_t timestamp_ms, key, value, headers=*) except -1
    @cython.locals(
        data=cython.p_uchar,
        position=cython.Py_ssize_t,
        body=cython.Py_ssize_t,
        headers_size=cython.Py_ssize_t,
    )
    cdef int _put(
        self,
        int64_t offset_delta,
        int64_t timestamp_delta,
        const unsigned char *key,
        Py_ssize_t key_at,
        Py_ssize_t key_size,
        const unsigned char *value,
        Py_ssize_t value_at,
        Py_ssize_t value_size,
        bytearray headers,
    ) except -1
    @cython.locals(
        key_data=cython.p_const_uchar,
        value_data=cython.p_const_uchar,
        stamps=int64_pointer,
        stamp=int64_t,
        row=cython.Py_ssize_t,
        row_headers=bytearray,
        key_size=cython.Py_ssize_t,
        value_size=cython.Py_ssize_t,
    )
    cpdef Py_ssize_t append_columns(
        self,
        BinaryColumn keys,
        BinaryColumn values,
        timestamps_ms,
        int64_t timestamp_ms,
        headers,
        Py_ssize_t start,
        Py_ssize_t stop,
        Py_ssize_t size_limit,
        bytearray default_headers,
    ) except -1
    cdef int _grow(self, Py_ssize_t needed) except -1


@cython.locals(raw=uint64_t, size=cython.Py_ssize_t)
cdef Py_ssize_t _varint_size(int64_t value) noexcept
@cython.locals(raw=uint64_t)
cdef Py_ssize_t _write_varint(unsigned char *data, Py_ssize_t position, int64_t value) noexcept
cdef bytes _as_bytes(field, str what)
@cython.locals(
    pairs=tuple,
    encoded=bytes,
    content=object,
    scratch=bytearray,
    size=cython.Py_ssize_t,
    length=cython.Py_ssize_t,
    position=cython.Py_ssize_t,
    data=cython.p_uchar,
)
cdef bytearray _encode_headers(headers)
@cython.locals(encoded=object)
cdef bytes _name_bytes(name)
