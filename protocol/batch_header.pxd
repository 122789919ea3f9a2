cimport cython
from libc.stdint cimport int64_t
from semel.protocol.buffers cimport address_of

cdef int64_t _OFFSET_LIMIT
cdef int64_t _SIZE_LIMIT
cdef int64_t _OVERHEAD
cdef int64_t _LENGTH_END


@cython.final
cdef class BatchHeader:
    cdef readonly Py_ssize_t position
    cdef readonly int64_t base_offset
    cdef readonly int64_t size_bytes
    cdef readonly int64_t leader_epoch
    cdef readonly int64_t magic
    cdef readonly int64_t crc
    cdef readonly int64_t attributes
    cdef readonly int64_t last_offset_delta
    cdef readonly int64_t base_timestamp_ms
    cdef readonly int64_t max_timestamp_ms
    cdef readonly int64_t producer_id
    cdef readonly int64_t producer_epoch
    cdef readonly int64_t base_sequence
    cdef readonly int64_t record_count


cdef int64_t _int64(const unsigned char *data, Py_ssize_t position) noexcept
cdef int64_t _int32(const unsigned char *data, Py_ssize_t position) noexcept
@cython.locals(high=int64_t)
cdef int64_t _uint32(const unsigned char *data, Py_ssize_t position) noexcept
@cython.locals(value=int64_t)
cdef int64_t _int16(const unsigned char *data, Py_ssize_t position) noexcept
@cython.locals(header=BatchHeader)
cdef BatchHeader _parse_header(const unsigned char *data, Py_ssize_t position, Py_ssize_t size)
@cython.locals(size=cython.Py_ssize_t)
cpdef BatchHeader read_header(buffer, Py_ssize_t position=*)
@cython.locals(position=cython.Py_ssize_t, size=cython.Py_ssize_t, header=BatchHeader)
cpdef list _split(buffer, int64_t max_batch_bytes, bint strict_count)
@cython.locals(header=BatchHeader)
cdef BatchHeader _whole_batch(
    buffer, Py_ssize_t position, Py_ssize_t size, int64_t max_batch_bytes, bint strict_count
)
@cython.locals(size=cython.Py_ssize_t, header=BatchHeader)
cpdef list leading_batches(buffer, Py_ssize_t position=*)
cpdef check_crc32c(buffer, BatchHeader header)
cdef _check_count(BatchHeader header, bint strict_count)
cpdef check_room(BatchHeader header, int64_t size_bytes)
