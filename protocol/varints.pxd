# Numbers of 1 to 10 bytes, zigzag-coded, for loops that make no objects. Interpreted, record_check.py has Python functions for them.
from libc.stdint cimport int64_t, uint64_t


cdef inline Py_ssize_t number_end(
    const unsigned char *data, Py_ssize_t position, Py_ssize_t end, int bits
) noexcept nogil:
    # Where the number at `position` ends; 0 where it does not end before `end`, or has more than `bits` bits.
    if end - position >= 2:
        if data[position] < 0x80:
            return position + 1
        if data[position + 1] < 0x80:
            return position + 2
    return long_number_end(data, position, end, bits)


cdef inline int64_t number_at(const unsigned char *data, Py_ssize_t position, Py_ssize_t after) noexcept nogil:
    # The number that is data[position:after].
    cdef uint64_t raw = data[position]
    if after - position > 1:
        raw = raw & 0x7F | <uint64_t> data[position + 1] << 7
        if after - position > 2:
            raw = long_number(data, position, after)
    return <int64_t> (raw >> 1 ^ (0 - (raw & 1)))


cdef inline Py_ssize_t long_number_end(
    const unsigned char *data, Py_ssize_t position, Py_ssize_t end, int bits
) noexcept nogil:
    cdef int shift = 0
    cdef int byte
    while position < end and shift < bits:
        byte = data[position]
        position += 1
        if shift + 7 > bits and (byte & 0x7F) >> (bits - shift):
            return 0
        if byte < 0x80:
            return position
        shift += 7
    return 0


cdef inline uint64_t long_number(const unsigned char *data, Py_ssize_t position, Py_ssize_t after) noexcept nogil:
    cdef uint64_t raw = 0
    cdef int shift = 0
    while position < after:
        raw |= <uint64_t> (data[position] & 0x7F) << shift
        shift += 7
        position += 1
    return raw
