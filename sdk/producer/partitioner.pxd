# C types for partitioner.py.
cimport cython
from libc.stdint cimport int32_t, uint32_t
from semel.protocol.buffers cimport int32_at, int32s_of, part_source

cdef uint32_t _SEED
cdef uint32_t _MULTIPLIER
cdef uint32_t _MASK

ctypedef const int32_t *int32_pointer
ctypedef int32_t *int32_out

cpdef uint32_t murmur2(bytes data) noexcept
@cython.locals(end=cython.Py_ssize_t, word=uint32_t, mixed=uint32_t)
cdef uint32_t _murmur2(const unsigned char *raw, Py_ssize_t position, Py_ssize_t size) noexcept
cpdef int32_t partition_for_key(bytes key, int partition_count) noexcept

@cython.locals(
    places=int32_pointer,
    found=int32_out,
    rows=cython.Py_ssize_t,
    last=cython.Py_ssize_t,
    size=cython.Py_ssize_t,
    row=cython.Py_ssize_t,
    start=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
    bits_size=cython.Py_ssize_t,
    raw=cython.p_const_uchar,
    bits=cython.p_const_uchar,
)
cpdef object partitions_for_keys(object offsets, object data, object valid, Py_ssize_t first, int partition_count, object out)
