# C types for handler.py.
cimport cython
from libc.stdint cimport int64_t

from semel.broker.handlers.fetch.call cimport FetchCall, Found
from semel.broker.handlers.fetch.sessions cimport FetchContext
from semel.protocol.kafka.fetch cimport FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse

cdef object _NO_ERROR
cdef object _READ_COMMITTED


@cython.final
cdef class FetchHandler:
    cdef dict __dict__  # so that tests can watch `read`
    cdef object __weakref__
    cdef public object node
    cdef public object spans
    cdef public Py_ssize_t _fetch_max_bytes
    cdef public object sessions
    cdef public dict _waiting
    cdef public bint _stopping
    cdef public Py_ssize_t fetched_bytes
    cdef public Py_ssize_t fetched_records

    @cython.locals(call=FetchCall, bytes_max=cython.Py_ssize_t)
    cdef FetchCall _call(
        self, FetchRequest request, int version, object done, bint only_leader, object rights, object usage,
        object listener_name
    )
    cpdef bint is_enough(self, FetchCall call, Found found) except -1
    @cython.locals(item=FetchPartitionResponse, size=cython.Py_ssize_t, context=FetchContext)
    cpdef FetchResponse response(self, FetchCall call, Found found)
    @cython.locals(found=Found)
    cdef Found _read_all(self, FetchCall call)
    cpdef Found begin_reading(self, FetchCall call)
    @cython.locals(item=FetchPartition, response=FetchPartitionResponse, size=cython.Py_ssize_t)
    cpdef object read(self, FetchCall call, Found found, object partitions)
    cdef object _hint(self, FetchPartition item, FetchPartitionResponse response, int version)
    cdef object _read_inline(self, FetchPartitionResponse response, object records, int version)
    @cython.locals(
        response=FetchPartitionResponse, silent_max_s=object, max_bytes=cython.Py_ssize_t, next_offset=int64_t
    )
    cdef FetchPartitionResponse _read_partition(self, FetchPartition item, FetchCall call, Found so_far)
    cdef object _check_readable(self, object partition, FetchCall call)
    cdef bint _may_read(self, FetchPartition item, FetchCall call) except -1


cdef object _fill(FetchPartitionResponse response, object partition, object found, object isolation)
