# C types for partitioner.py.
from libc.stdint cimport int32_t, uint32_t

cdef uint32_t _SEED
cdef uint32_t _MULTIPLIER
cdef uint32_t _MASK

cpdef uint32_t murmur2(bytes data) noexcept
cpdef int32_t partition_for_key(bytes key, int partition_count) noexcept
