# C types for handler.py.
cimport cython

from semel.protocol.batch_header cimport BatchHeader
from semel.protocol.kafka.produce cimport ProducePartition, ProducePartitionResponse, ProduceRequest


@cython.final
cdef class ProduceHandler:
    cdef dict __dict__  # so that tests can watch `begin`
    cdef object __weakref__
    cdef public object node
    cdef public object spans
    cdef public object gate
    cdef public object checks
    cdef public Py_ssize_t appended_batches
    cdef public Py_ssize_t appended_records
    cdef public Py_ssize_t appended_bytes
    cdef public Py_ssize_t duplicate_batches
    cdef public Py_ssize_t refused_batches
    cdef public object refusals
    cdef public Py_ssize_t timed_out_requests
    cdef public object confirmations
    cdef public object early_refusals
    cdef public object overtaking
    cdef public object large_requests
    cdef public bint names_leaders

    @cython.locals(acks=cython.int, answers=list, item=ProducePartition, appended=tuple)
    cpdef object begin_part(self, ProduceRequest request, int version, object done, object turn)
    cdef bint _is_in_doubt(self, ProducePartitionResponse answer) except -1
    cdef object _name_topics(self, ProduceRequest request)
    cdef object _append_light(self, ProducePartition item, int acks, int version)
    @cython.locals(header=BatchHeader)
    cdef tuple _check_plain(self, ProducePartition item, int version)
    @cython.locals(header=BatchHeader, size=cython.Py_ssize_t)
    cdef tuple _check(self, ProducePartition item, int version)
    cdef object _append(
        self, ProducePartition item, object partition, int acks, int version, object verified, object checked
    )
    @cython.locals(answer=ProducePartitionResponse)
    cdef object _append_untraced(
        self, ProducePartition item, object partition, int acks, int version, object verified, object checked
    )
    cdef object _out_of_order(self, ProducePartition item, object partition, object error, int version)


cdef bint _is_light(BatchHeader header, object config) except -1
