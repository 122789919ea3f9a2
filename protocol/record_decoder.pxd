cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from semel.protocol.buffers cimport (
    address_of, bytes_of, int32s_of, int64s_of, part_source, put_part, take_bytes, untrack
)

cdef int64_t _TIMESTAMP_LIMIT
ctypedef int32_t *int32_pointer
ctypedef int64_t *int64_pointer

cdef int64_t _LENGTH_MIN
cdef int64_t _COLUMN_BYTES_MAX
cdef Py_ssize_t _LET_IN
cdef int64_t _MICROS_LIMIT
cdef int _OK
cdef int _BAD_VARINT
cdef int _BAD_SIZE
cdef int _BAD_LENGTH
cdef int _BAD_HEADERS


@cython.final
@cython.freelist(64)
cdef class Record:
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers
    cdef readonly str topic
    cdef readonly int partition


@cython.final
cdef class _Cursor:
    cdef object _view
    cdef const unsigned char *data
    cdef Py_ssize_t position
    cdef Py_ssize_t end
    cdef Py_ssize_t limit
    cdef int broken

    cdef int open(self, data, Py_ssize_t start, Py_ssize_t limit) except -1
    @cython.locals(length=int64_t)
    cdef inline void begin(self) noexcept
    cdef void fail(self, int fault) noexcept
    cdef void finish(self) noexcept
    @cython.locals(byte=int64_t, high=int64_t, position=cython.Py_ssize_t)
    cdef inline int64_t varint(self) noexcept
    @cython.locals(byte=int64_t, position=cython.Py_ssize_t)
    cdef inline int64_t varlong(self) noexcept
    @cython.locals(byte=uint64_t, high=uint64_t, raw=uint64_t, shift=cython.int, position=cython.Py_ssize_t)
    cdef int64_t long_varint(self, int bits) noexcept
    @cython.locals(size=int64_t)
    cdef inline Py_ssize_t size(self) noexcept
    @cython.locals(size=cython.Py_ssize_t)
    cdef void skip(self) noexcept
    @cython.locals(size=cython.Py_ssize_t, start=cython.Py_ssize_t)
    cdef bytes take(self)
    @cython.locals(count=int64_t, name=bytes, value=bytes, headers=list)
    cdef tuple headers(self)
    @cython.locals(count=int64_t, size=cython.Py_ssize_t)
    cdef inline void skip_headers(self) noexcept


@cython.locals(
    cursor=_Cursor,
    record=Record,
    records=list,
    count=cython.Py_ssize_t,
    index=cython.Py_ssize_t,
    base_offset=int64_t,
    base_timestamp=int64_t,
    max_timestamp=int64_t,
    append_time=cython.bint,
    last_delta=int64_t,
    previous=int64_t,
    timestamp=int64_t,
    delta=int64_t,
)
cdef list _decode_records(header, data, Py_ssize_t start, Py_ssize_t limit, str topic, int partition)
@cython.locals(cursor=_Cursor, value=bytes, values=list, count=cython.Py_ssize_t, index=cython.Py_ssize_t)
cdef list _decode_values(header, data, Py_ssize_t start, Py_ssize_t limit)


@cython.final
cdef class ColumnDecoder:
    cdef object _views
    cdef object _key_at_view
    cdef object _value_at_view
    cdef int64_t *_offsets
    cdef int64_t *_timestamps
    cdef int32_t *_types
    cdef int32_t *_key_offsets
    cdef int32_t *_value_offsets
    cdef unsigned char *_key_valid
    cdef unsigned char *_value_valid
    cdef int32_t *_key_at
    cdef int32_t *_value_at
    cdef int64_t _first_offset
    cdef int64_t _end_offset
    cdef list _parts
    cdef readonly bint with_headers
    cdef readonly list headers
    cdef readonly Py_ssize_t rows_max
    cdef readonly Py_ssize_t rows
    cdef readonly int64_t key_bytes
    cdef readonly int64_t value_bytes
    cdef readonly Py_ssize_t key_nulls
    cdef readonly Py_ssize_t value_nulls

    @cython.locals(
        cursor=_Cursor,
        count=cython.Py_ssize_t,
        index=cython.Py_ssize_t,
        row=cython.Py_ssize_t,
        first_row=cython.Py_ssize_t,
        base_offset=int64_t,
        base_timestamp=int64_t,
        max_timestamp=int64_t,
        timestamp_type=cython.int,
        last_delta=int64_t,
        previous=int64_t,
        timestamp=int64_t,
        delta=int64_t,
        stamp=int64_t,
        key_size=cython.Py_ssize_t,
        key_at=cython.Py_ssize_t,
        value_size=cython.Py_ssize_t,
        value_at=cython.Py_ssize_t,
        key_bytes=int64_t,
        value_bytes=int64_t,
        offsets=int64_pointer,
        timestamps=int64_pointer,
        types=int32_pointer,
        key_places=int32_pointer,
        value_places=int32_pointer,
        key_offsets=int32_pointer,
        value_offsets=int32_pointer,
        first_offset=int64_t,
        end_offset=int64_t,
        with_headers=cython.bint,
        headers=tuple,
    )
    cpdef add(self, header, data, Py_ssize_t start, Py_ssize_t limit)
    @cython.locals(
        key_target=cython.p_uchar,
        value_target=cython.p_uchar,
        source=cython.p_const_uchar,
        key_places=int32_pointer,
        value_places=int32_pointer,
        key_offsets=int32_pointer,
        value_offsets=int32_pointer,
        first_row=cython.Py_ssize_t,
        end_row=cython.Py_ssize_t,
        row=cython.Py_ssize_t,
        at=cython.Py_ssize_t,
    )
    cpdef fill(self, keys, values)
