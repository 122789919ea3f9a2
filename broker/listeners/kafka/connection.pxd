# C types for connection.py.
cimport cython

from semel.broker.listeners.kafka.flushes cimport Flushes
from semel.broker.listeners.kafka.output cimport Output
from semel.broker.listeners.kafka.registry cimport RequestContext
from semel.protocol.kafka.wire cimport RequestHeader


@cython.final
cdef class KafkaConnection:
    cdef object __weakref__
    cdef object _listener
    cdef object _limits
    cdef object _loop
    cdef public object _time
    cdef object _node
    cdef object _statistics
    cdef list _requests
    cdef object _times
    cdef double _turn
    cdef list _at_once
    cdef object _api_of
    cdef Py_ssize_t _request_bytes_max
    cdef object _transport
    cdef int _descriptor
    cdef object _reads
    cdef public Output output
    cdef public object address
    cdef public object peer
    cdef public object listener_name
    cdef public object peer_node
    cdef public object authentication
    cdef public object access
    cdef public object all_rights
    cdef public object quotas
    cdef public object quota_user
    cdef bint _muted
    cdef double _muted_until
    cdef object _unmute_timer
    cdef public object _view
    cdef public Py_ssize_t _start
    cdef public Py_ssize_t _end
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _free_min
    cdef Py_ssize_t _last_read
    cdef public object _large
    cdef public object claim
    cdef bint _waits_for_room
    cdef Py_ssize_t _unanswered_bytes
    cdef Py_ssize_t _covered_bytes
    cdef bint _turn_is_over
    cdef bint _left_frames
    cdef Py_ssize_t _frames_taken
    cdef object _watched
    cdef object _frames
    cdef public object _waiting
    cdef bint _exclusive
    cdef Py_ssize_t _in_flight
    cdef Flushes _flushes
    cdef bint _flush_waits
    cdef bint _flush_scheduled
    cdef bint _reading_paused
    cdef bint _held_by_output
    cdef bint _closing
    cdef bint _closed
    cdef public double last_used

    cdef object _work(self)
    cdef object _go_on_with_large(self, object large)
    @cython.locals(start=cython.Py_ssize_t, end=cython.Py_ssize_t, in_flight_max=cython.Py_ssize_t,
                   size=cython.Py_ssize_t, body=cython.Py_ssize_t)
    cdef object _split(self)
    cdef bint _may_split(self) except -1
    cdef object _end_turn(self)
    cdef object _release(self, Py_ssize_t size)
    @cython.locals(header=RequestHeader)
    cdef object _frame(self, object frame, Py_ssize_t reserved=*)
    cdef object _served(self, RequestHeader header)
    cdef object _begin(self)
    cdef bint _may_begin(self, object api) except -1
    @cython.locals(output=Output)
    cdef bint _has_much_to_send(self) except -1
    @cython.locals(context=RequestContext, size=cython.Py_ssize_t, exclusive=cython.bint)
    cdef object _start_request(self, object frame, RequestHeader header, object api, Py_ssize_t reserved)
    cdef object _measure(self, RequestContext context, Py_ssize_t size)
    cdef object _schedule_flush(self)
    @cython.locals(context=RequestContext)
    cdef object _drop_answered(self)
    cdef object _note_answered(self, RequestContext context)
    @cython.locals(before=cython.Py_ssize_t)
    cdef object _flush(self)
    @cython.locals(pause=cython.bint)
    cdef object _pause_or_resume(self)
    cdef object _read_no_more(self)
