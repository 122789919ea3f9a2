# C types for partition.py.
cimport cython

from semel.broker.logs.commit_tracker cimport CommitTracker


cdef class Partition:
    cdef public object _before_cut
    cdef public object _clock
    cdef public CommitTracker _commits
    cdef public object _continued
    cdef public Py_ssize_t _durable_end
    cdef public object _durable_waiter
    cdef public object _epoch_note
    cdef public object _heard_s
    cdef public object _held_back
    cdef public Py_ssize_t _high_watermark
    cdef public Py_ssize_t _last_stable_offset
    cdef public object _leader
    cdef public object _listeners
    cdef public object _offline_error
    cdef public object _on_log_start_moved
    cdef public object _refused
    cdef public object _replica_listeners
    cdef public CommitTracker _unsealed
    cdef public object _waiters
    cdef public Py_ssize_t fetched_bytes
    cdef public Py_ssize_t leader_epoch
    cdef public object log
    cdef public object tier
    cdef public object topic_id
    cdef public object tp

    cpdef object made_durable(self, Py_ssize_t offset)
    @cython.locals(commits=CommitTracker, end_before=cython.Py_ssize_t)
    cpdef object append(
        self, object buffer, object origin=*, object acks=*, object verified=*, object checked=*
    )
    cpdef object advance_high_watermark(self, Py_ssize_t offset)
    cpdef object _notify(self, bint has_more=*)
    cpdef Py_ssize_t _find_last_stable_offset(self, Py_ssize_t high_watermark) except -1
    cpdef object _check_led(self)
