# C types for produce.py.
cimport cython
from libc.stdint cimport int64_t
from semel.protocol.kafka.wire cimport WireReader, WireWriter

cpdef object _check_version(int version)
cpdef object read_topic_id(WireReader reader)

@cython.final
cdef class ProducePartition:
    cdef public object topic
    cdef public int partition
    cdef public object records
    cdef public object topic_id
    cdef public object trace

@cython.final
cdef class ProduceRequest:
    cdef public list partitions
    cdef public object transactional_id
    cdef public int acks
    cdef public int timeout_ms
    cdef public object trace

@cython.locals(flexible=cython.bint, acks=cython.int, timeout_ms=cython.int, topics=cython.Py_ssize_t,
               count=cython.Py_ssize_t, item=ProducePartition, partitions=list)
cpdef ProduceRequest _parse_request(WireReader reader, int version)

@cython.locals(first=ProducePartition, item=ProducePartition, end=cython.Py_ssize_t)
cpdef Py_ssize_t _run_of_topic(list partitions, Py_ssize_t start) except -1

@cython.locals(flexible=cython.bint, first=ProducePartition, item=ProducePartition, partitions=list, runs=list,
               at=cython.Py_ssize_t, end=cython.Py_ssize_t)
cpdef object _write_request(ProduceRequest request, WireWriter writer, int version)

@cython.final
cdef class ProducePartitionResponse:
    cdef public object topic
    cdef public int partition
    cdef public object error
    cdef public int64_t base_offset
    cdef public int64_t log_append_time_ms
    cdef public int64_t log_start_offset
    cdef public object record_errors
    cdef public object error_message
    cdef public int leader_id
    cdef public int leader_epoch
    cdef public object topic_id

@cython.final
cdef class ProduceResponse:
    cdef public list partitions
    cdef public int throttle_time_ms
    cdef public object node_endpoints

@cython.locals(flexible=cython.bint, partitions=list, topics=cython.Py_ssize_t, count=cython.Py_ssize_t,
               item=ProducePartitionResponse, throttle_time_ms=cython.int)
cpdef ProduceResponse _parse_response(WireReader reader, int version)

@cython.locals(count=cython.Py_ssize_t, index=cython.int)
cpdef object _read_record_errors(WireReader reader, bint flexible)

@cython.locals(tags=int64_t, tag=int64_t, size=int64_t, end=int64_t)
cpdef object _read_partition_tags(WireReader reader, ProducePartitionResponse item, int version)

cpdef object check_tag_end(WireReader reader, int64_t tag, int64_t end)

@cython.locals(tags=int64_t, tag=int64_t, size=int64_t, end=int64_t,
               count=cython.Py_ssize_t, node_id=cython.int, port=cython.int)
cpdef object read_endpoint_tags(WireReader reader, bint known)

@cython.locals(field=WireWriter)
cpdef object write_endpoint_tags(WireWriter writer, object endpoints, bint known)

@cython.locals(first=ProducePartitionResponse, item=ProducePartitionResponse, end=cython.Py_ssize_t)
cpdef Py_ssize_t _response_run_of_topic(list partitions, Py_ssize_t start) except -1

@cython.locals(flexible=cython.bint, first=ProducePartitionResponse, item=ProducePartitionResponse, partitions=list,
               runs=list, at=cython.Py_ssize_t, end=cython.Py_ssize_t)
cpdef object _write_response(ProduceResponse response, WireWriter writer, int version)

cpdef object _write_record_errors(WireWriter writer, object errors, bint flexible)

cpdef object write_leader_tag(WireWriter writer, int tag, int leader_id, int leader_epoch)
