cimport cython
from libc.stdint cimport int64_t
from semel.protocol.batch_header cimport BatchHeader, check_crc32c, read_header
from semel.protocol.buffers cimport address_of
from semel.protocol.varints cimport number_at, number_end

cdef int64_t _DELTA_LIMIT
cdef int64_t _TIME_LIMIT
cdef int64_t _LENGTH_MIN
cdef int64_t _PLAIN_BYTES_MIN
cdef int64_t _SMALL_BYTES
cdef int _OK
cdef int _BAD_NUMBER
cdef int _BAD_LENGTH
cdef int _BAD_OFFSET
cdef int _BAD_SIZE
cdef int _BAD_HEADERS
cdef int _LEFT_OVER
cdef int _BAD_END
cdef int _BAD_TIMESTAMP


@cython.final
@cython.freelist(8)
cdef class RecordsSummary:
    cdef readonly int fault
    cdef readonly int64_t place
    cdef readonly int64_t keyless
    cdef int64_t delta
    cdef int64_t offset_delta
    cdef readonly int64_t min_timestamp_ms
    cdef readonly int64_t max_timestamp_ms


@cython.locals(
    summary=RecordsSummary, address=cython.p_const_uchar, count=int64_t, base=int64_t
)
cpdef RecordsSummary summarize_records(BatchHeader header, data, Py_ssize_t start, Py_ssize_t limit)
@cython.locals(
    summary=RecordsSummary, address=cython.p_const_uchar, count=int64_t, base=int64_t, wanted=int64_t, time=int64_t
)
cpdef find_time(
    BatchHeader header, data, Py_ssize_t start, Py_ssize_t limit, int64_t timestamp_ms, int64_t offset
)
@cython.locals(
    address=cython.p_const_uchar, position=cython.Py_ssize_t, after=cython.Py_ssize_t, end=cython.Py_ssize_t,
    place=int64_t, time=int64_t, oldest=int64_t
)
cpdef int64_t oldest_time(BatchHeader header, data, Py_ssize_t start, Py_ssize_t limit)
@cython.locals(header=BatchHeader, summary=RecordsSummary, size=int64_t)
cpdef read_plain_batch(buffer, int64_t max_batch_bytes)
@cython.locals(
    address=cython.p_const_uchar, position=cython.Py_ssize_t, after=cython.Py_ssize_t, end=cython.Py_ssize_t,
    place=int64_t
)
cpdef list keyless_records(BatchHeader header, data, Py_ssize_t start, Py_ssize_t limit, Py_ssize_t most)
@cython.locals(
    position=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
    low=int64_t,
    high=int64_t,
    low_place=int64_t,
    high_place=int64_t,
    place=int64_t,
    delta=int64_t,
)
cdef void _walk(
    RecordsSummary summary, const unsigned char *data, Py_ssize_t start, Py_ssize_t limit, int64_t count, int64_t base
) noexcept nogil
@cython.locals(raw=int64_t, high=int64_t, end=cython.Py_ssize_t, delta=int64_t, keyless=int64_t)
cdef Py_ssize_t _plain_record(
    RecordsSummary summary, const unsigned char *data, Py_ssize_t position, Py_ssize_t limit, int64_t place
) noexcept nogil
@cython.locals(after=cython.Py_ssize_t, end=cython.Py_ssize_t, length=int64_t, size=int64_t, field=cython.int)
cdef Py_ssize_t _any_record(
    RecordsSummary summary, const unsigned char *data, Py_ssize_t position, Py_ssize_t limit, int64_t place
) noexcept nogil
@cython.locals(after=cython.Py_ssize_t, count=int64_t, index=int64_t, size=int64_t)
cdef int _walk_headers(const unsigned char *data, Py_ssize_t position, Py_ssize_t end) noexcept nogil
@cython.locals(position=cython.Py_ssize_t, place=int64_t)
cdef void _seek(
    RecordsSummary summary,
    const unsigned char *data,
    Py_ssize_t start,
    Py_ssize_t limit,
    int64_t count,
    int64_t base,
    int64_t timestamp_ms,
    int64_t offset_delta,
) noexcept nogil
cdef bint _is_time(int64_t base, int64_t delta) noexcept nogil
