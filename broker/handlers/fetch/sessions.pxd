# C types for sessions.py.
cimport cython
from libc.stdint cimport int64_t

from semel.protocol.kafka.fetch cimport FetchPartition, FetchPartitionResponse, FetchRequest, ForgottenPartition

cdef object _NO_ERROR


@cython.final
cdef class SessionPartition:
    cdef public FetchPartition request
    cdef public int64_t high_watermark
    cdef public int64_t log_start_offset

    @cython.locals(news=cython.bint)
    cpdef bint take(self, FetchPartitionResponse response) except -1


@cython.final
cdef class FetchSession:
    cdef public object id
    cdef public object owner
    cdef public int64_t epoch
    cdef public bint uses_topic_ids
    cdef public int64_t created_ms
    cdef public int64_t last_used_ms
    cdef public object partitions

    @cython.locals(item=FetchPartition, known=SessionPartition, gone=ForgottenPartition)
    cpdef object update(self, FetchRequest request)
    @cython.locals(response=FetchPartitionResponse, known=SessionPartition)
    cpdef list take(self, object responses)


@cython.final
cdef class FetchContext:
    cdef object _owner
    cdef object _sessions
    cdef public object partitions
    cdef bint _uses_topic_ids
    cdef bint _begins
    cdef public FetchSession session
    cdef int64_t _epoch
    cdef public object error

    cpdef tuple answer(self, list responses, int64_t now_ms)
    cpdef tuple withhold(self)
