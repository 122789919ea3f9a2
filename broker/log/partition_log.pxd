# C types for partition_log.py.
cimport cython

from semel.broker.log.segment cimport Segment
from semel.protocol.batch_header cimport BatchHeader


cdef class PartitionLog:
    cdef public object _broken
    cdef public bint _closed
    cdef public object _producer_ids
    cdef public object _refused
    cdef public object _verifications
    cdef public object config
    cdef public object epochs
    cdef public bint is_only_replica
    cdef public object local
    cdef public Py_ssize_t log_end_offset
    cdef public Py_ssize_t log_start_offset
    cdef public object offline_error
    cdef public object producer_id_expiration_ms
    cdef public object producer_state
    cdef public object recovered_bytes_cut
    cdef public object recovered_damage
    cdef public object recovered_damage_from
    cdef public object replayed_cut
    cdef public object segments
    cdef public Py_ssize_t tiered_end
    cdef public object tiered_start
    cdef public object topic_id
    cdef public object tp

    @cython.locals(
        header=BatchHeader, client=cython.bint, transactional=cython.bint, max_timestamp_ms=cython.Py_ssize_t,
        append_time_ms=cython.Py_ssize_t, base_offset=cython.Py_ssize_t, delta=cython.Py_ssize_t,
        last_offset=cython.Py_ssize_t, end=cython.Py_ssize_t, segment=Segment,
    )
    cpdef object append(
        self, object buffer, Py_ssize_t leader_epoch, Py_ssize_t now_ms, object origin=*, object verified=*,
        object checked=*,
    )
    @cython.locals(segment=Segment)
    cpdef Segment _write(
        self, object buffer, Py_ssize_t size, Py_ssize_t base_offset, Py_ssize_t last_offset,
        Py_ssize_t max_timestamp_ms, Py_ssize_t leader_epoch, Py_ssize_t now_ms,
    )
    cpdef object first_unstable_offset(self, Py_ssize_t high_watermark)
