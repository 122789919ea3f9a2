# C types for accumulator.py.
cimport cython
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from semel.protocol.batch_builder cimport BatchBuilder
from semel.sdk.producer.delivery cimport Delivery, ProducerBatch
from semel.sdk.producer.partitioner cimport murmur2

cdef inline int64_t realtime_ms() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t> now.tv_sec * 1000 + now.tv_nsec // 1000000


@cython.final
cdef class PartitionBuffer:
    cdef readonly object topic
    cdef readonly int64_t partition
    cdef object closed
    cdef ProducerBatch filling
    cdef int64_t capacity_bytes
    cdef bint listed


@cython.final
cdef class TopicBuffers:
    cdef readonly object topic
    cdef readonly int64_t count
    cdef list buffers
    cdef int64_t sticky


@cython.final
cdef class Accumulator:
    cdef cython.pymutex _lock
    cdef object _options
    cdef int64_t _batch_size_bytes
    cdef int64_t _buffered_bytes
    cdef int64_t _buffered_max
    cdef int64_t _record_bytes_max
    cdef object _clock
    cdef bint _is_machine_clock
    cdef object _partitioner
    cdef object _key_serializer
    cdef object _value_serializer
    cdef int64_t _random
    cdef int64_t _serial
    cdef bint _wake_pending
    cdef readonly object tracer
    cdef public object transaction_context
    cdef dict _topics
    cdef list _listed
    cdef dict _incomplete
    cdef public object client_id
    cdef public bint gate_closed
    cdef public object open_topic
    cdef public object wait_room
    cdef public object wake
    cdef public object refuse

    cdef int64_t _wall_ms(self) except -1
    @cython.locals(size=cython.Py_ssize_t, buffers=TopicBuffers, buffer=PartitionBuffer, batch=ProducerBatch, number=int64_t,
                   delta=int64_t, wake=cython.bint, full=cython.bint, delivery=Delivery)
    cdef Delivery _append(self, topic, bytes value, bytes key, headers, partition, int64_t now_ms, on_delivery, trace)
    @cython.locals(delivery=Delivery)
    cdef Delivery _send_traced(self, topic, bytes value, bytes key, headers, partition, int64_t now_ms, on_delivery)
    @cython.locals(size=cython.Py_ssize_t, buffers=TopicBuffers, buffer=PartitionBuffer, batch=ProducerBatch,
                   wake=cython.bint, full=cython.bint)
    cpdef Delivery send_batch(self, topic, partition, bytearray data, int64_t record_count)
    @cython.locals(current=PartitionBuffer)
    cdef PartitionBuffer _sticky(self, TopicBuffers buffers)
    cdef ProducerBatch _begin(self, PartitionBuffer buffer, int64_t size)
    cdef ProducerBatch _new_batch(self, PartitionBuffer buffer, BatchBuilder builder)
    cdef int _close(self, PartitionBuffer buffer, ProducerBatch batch) except -1
    @cython.locals(buffers=TopicBuffers)
    cpdef int64_t partition_count(self, topic) except -1
    @cython.locals(known=TopicBuffers)
    cpdef add_topic(self, topic, int64_t partition_count)
    cpdef remove_topic(self, topic)
    cpdef list take_listed(self)
    cpdef bint unlist(self, PartitionBuffer buffer) except -1
    @cython.locals(batch=ProducerBatch)
    cpdef int64_t ready_at_ms(self, PartitionBuffer buffer, int64_t linger_ms, int64_t flush_serial) except -2
    cpdef ProducerBatch first(self, PartitionBuffer buffer)
    cpdef ProducerBatch take(self, PartitionBuffer buffer)
    @cython.locals(buffers=TopicBuffers, buffer=PartitionBuffer)
    cpdef list take_all(self)
    cpdef release(self, ProducerBatch batch)
    cpdef replaced(self, ProducerBatch batch, list parts)

cdef int64_t _size_of(ProducerBatch batch) except -1
@cython.locals(builder=BatchBuilder)
cdef int64_t _add(ProducerBatch batch, int64_t now_ms, bytes key, bytes value, headers) except -1
cdef PartitionBuffer _buffer_at(TopicBuffers buffers, int64_t number)
@cython.locals(delivery=Delivery)
cdef Delivery _delivery(ProducerBatch batch, int64_t delta, int64_t timestamp_ms)
cdef int64_t _checked_time(timestamp_ms) except -1
cdef int64_t _checked_partition(partition, TopicBuffers buffers) except -1
cdef int64_t _chosen_partition(partitioner, topic, key, value, TopicBuffers buffers) except -1
