# C types for fetch.py.
cimport cython
from libc.stdint cimport int64_t
from semel.protocol.kafka.wire cimport WireReader, WireWriter

cdef object _READ_COMMITTED
cdef object _READ_UNCOMMITTED

cpdef object _check_version(int version)

@cython.final
cdef class FetchPartition:
    cdef public object topic
    cdef public object topic_id
    cdef public int partition
    cdef public int64_t fetch_offset
    cdef public int max_bytes
    cdef public int current_leader_epoch
    cdef public int last_fetched_epoch
    cdef public int64_t log_start_offset
    cdef public object replica_directory_id

@cython.final
cdef class ForgottenPartition:
    cdef public object topic
    cdef public object topic_id
    cdef public int partition

@cython.final
cdef class FetchRequest:
    cdef public list partitions
    cdef public int max_wait_ms
    cdef public int min_bytes
    cdef public int max_bytes
    cdef public object isolation
    cdef public int session_id
    cdef public int session_epoch
    cdef public list forgotten
    cdef public object rack_id
    cdef public int replica_id
    cdef public int64_t replica_epoch
    cdef public object cluster_id

@cython.locals(flexible=cython.bint, request=FetchRequest, isolation=cython.int)
cpdef FetchRequest _parse_request(WireReader reader, int version)

@cython.locals(flexible=cython.bint, topics=cython.Py_ssize_t, count=cython.Py_ssize_t, item=FetchPartition)
cpdef object _read_fetch_topics(WireReader reader, list partitions, int version)

@cython.locals(tags=int64_t, tag=int64_t, size=int64_t, end=int64_t)
cpdef object _read_fetch_partition_tags(WireReader reader, FetchPartition item, int version)

@cython.locals(flexible=cython.bint, topics=cython.Py_ssize_t, count=cython.Py_ssize_t)
cpdef object _read_forgotten_topics(WireReader reader, list forgotten, int version)

@cython.locals(tags=int64_t, tag=int64_t, size=int64_t, end=int64_t)
cpdef object _read_request_tags(WireReader reader, FetchRequest request, int version)

@cython.locals(flexible=cython.bint)
cpdef object _write_request(FetchRequest request, WireWriter writer, int version)

@cython.locals(flexible=cython.bint, first=FetchPartition, item=FetchPartition, runs=list, at=cython.Py_ssize_t,
               end=cython.Py_ssize_t)
cpdef object _write_fetch_topics(WireWriter writer, list partitions, int version)

@cython.locals(flexible=cython.bint, first=ForgottenPartition, item=ForgottenPartition, runs=list,
               at=cython.Py_ssize_t, end=cython.Py_ssize_t)
cpdef object _write_forgotten_topics(WireWriter writer, list forgotten, int version)

@cython.locals(has_state=cython.bint, field=WireWriter)
cpdef object _write_request_tags(WireWriter writer, FetchRequest request, int version)

@cython.final
cdef class FetchPartitionResponse:
    cdef public object topic
    cdef public object topic_id
    cdef public int partition
    cdef public object error
    cdef public int64_t high_watermark
    cdef public int64_t last_stable_offset
    cdef public int64_t log_start_offset
    cdef public object aborted
    cdef public object records
    cdef public int preferred_read_replica
    cdef public int leader_id
    cdef public int leader_epoch
    cdef public int diverging_epoch
    cdef public int64_t diverging_end_offset

@cython.final
cdef class FetchResponse:
    cdef public list partitions
    cdef public object error
    cdef public int session_id
    cdef public int throttle_time_ms
    cdef public object node_endpoints

@cython.locals(flexible=cython.bint, response=FetchResponse, partitions=list, topics=cython.Py_ssize_t,
               count=cython.Py_ssize_t, item=FetchPartitionResponse)
cpdef FetchResponse _parse_response(WireReader reader, int version)

@cython.locals(count=cython.Py_ssize_t, producer_id=int64_t)
cpdef object _read_aborted(WireReader reader, bint flexible)

@cython.locals(tags=int64_t, tag=int64_t, size=int64_t, end=int64_t)
cpdef object _read_partition_tags(WireReader reader, FetchPartitionResponse item)

@cython.locals(flexible=cython.bint, partitions=list, first=FetchPartitionResponse, item=FetchPartitionResponse,
               runs=list, at=cython.Py_ssize_t, end=cython.Py_ssize_t)
cpdef object _write_response(FetchResponse response, WireWriter writer, int version)

@cython.locals(flexible=cython.bint)
cpdef object _write_partition_response(WireWriter writer, FetchPartitionResponse item, int version)

@cython.locals(diverging=cython.bint, leader=cython.bint)
cpdef object _write_partition_tags(WireWriter writer, FetchPartitionResponse item)
