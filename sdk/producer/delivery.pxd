# C types for delivery.py.
cimport cython
from libc.stdint cimport int32_t, int64_t

from semel.protocol.batch_builder cimport BatchBuilder


@cython.final
cdef class ProducerBatch:
    cdef readonly int64_t serial
    cdef readonly object topic
    cdef readonly int64_t partition
    cdef public BatchBuilder builder
    cdef readonly int64_t created_ms
    cdef public int64_t charged_bytes
    cdef public int64_t record_count
    cdef public list callbacks
    cdef public list traces
    cdef public object sent_in
    cdef public object data
    cdef public int64_t producer_id
    cdef public int64_t producer_epoch
    cdef public int64_t base_sequence
    cdef public int64_t attempts
    cdef public bint in_flight
    cdef public bint first_in_line
    cdef public bint in_doubt
    cdef public int64_t not_before_ms
    cdef readonly bint done
    cdef readonly int64_t base_offset
    cdef readonly int64_t append_time_ms
    cdef readonly object error
    cdef object event
    cdef dict wakers
    cdef readonly object parts


# Without the garbage collector: a producer makes millions a second, and a callback that refers to its own delivery is let
# go when its batch is done.
@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Delivery:
    cdef ProducerBatch _batch
    cdef int64_t _delta
    cdef int64_t _timestamp_ms
