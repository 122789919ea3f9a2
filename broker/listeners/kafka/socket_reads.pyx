# cython: language_level=3
"""Reads the sockets of many connections in one callback of the event loop.

For each socket that has something asyncio makes a handle, runs it in a context, and calls seven functions around one
`recv`. Here an epoll of its own says that some of them have something, and they are read one after the other. What they
have is read into the readers' own buffers; a reader that has too much of it is taken out, and put in again later.

All methods are for one thread, that of the event loop.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from posix.unistd cimport close

import os


cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL
    uint32_t EPOLLIN
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event *)
    int epoll_wait(int, epoll_event *, int, int)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int, void *, size_t, int)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int, timespec *)

cdef enum:
    # So many are told of at once at most. The system tells of the others first, the next time.
    _TOGETHER_MAX = 64
    # To copy more takes so long that other threads of the process may run meanwhile.
    _LARGE_BYTES = 65536

cdef double _TURN_S = 0.005
"""After so long the rest of the event loop has its turn (S3). It is `TURN_S` of a connection."""


cdef double _now():
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef class SocketReads:
    """Shared by the connections of a listener. `read` is for the event loop to call when `fileno` is readable."""

    cdef int _epoll
    cdef dict _readers
    # The sockets that the system told of last, and how many of them have had their turn. Asked again it would begin with
    # the first of them.
    cdef int[_TOGETHER_MAX] _told
    cdef int _told_count
    cdef int _read_count

    def __cinit__(self):
        self._epoll = -1
        self._told_count = self._read_count = 0
        self._readers = {}

    def __init__(self):
        """Raises `OSError` where the system has no descriptor for it."""
        self._epoll = epoll_create1(EPOLL_CLOEXEC)
        if self._epoll < 0:
            raise _failed()

    def __dealloc__(self):
        if self._epoll >= 0:
            close(self._epoll)

    def fileno(self):
        return self._epoll

    def close(self):
        """Read nothing more."""
        self._readers.clear()
        self._told_count = self._read_count = 0
        if self._epoll >= 0:
            close(self._epoll)
            self._epoll = -1

    def add(self, int socket, reader):
        """Read a socket from now on. Raises `OSError`."""
        cdef epoll_event wanted
        wanted.events = EPOLLIN
        wanted.data.u64 = 0
        wanted.data.fd = socket
        if epoll_ctl(self._epoll, EPOLL_CTL_ADD, socket, &wanted) < 0:
            raise _failed()
        self._readers[socket] = reader

    def remove(self, int socket):
        """Read a socket no more, until it is added again: before it is closed."""
        cdef epoll_event unused
        if self._readers.pop(socket, None) is not None:
            epoll_ctl(self._epoll, EPOLL_CTL_DEL, socket, &unused)

    def read(self):
        """Read what has come, once from each socket that has something."""
        cdef epoll_event events[_TOGETHER_MAX]
        cdef int number, socket
        cdef double until
        if self._epoll < 0:
            return
        if self._read_count == self._told_count:
            self._read_count = 0
            self._told_count = max(0, epoll_wait(self._epoll, events, _TOGETHER_MAX, 0))
            for number in range(self._told_count):
                self._told[number] = events[number].data.fd
        until = _now() + _TURN_S
        while self._read_count < self._told_count:
            socket = self._told[self._read_count]
            self._read_count += 1
            reader = self._readers.get(socket)
            if reader is None:
                continue  # taken out by one that was read before it
            self._read(socket, reader)
            if _now() > until:
                return

    cdef object _read(self, int socket, object reader):
        cdef Py_buffer target
        cdef ssize_t size
        cdef int failure
        try:
            buffer = reader.get_buffer(-1)
            PyObject_GetBuffer(buffer, &target, PyBUF_WRITABLE)
            try:
                if target.len == 0:
                    raise RuntimeError("a connection has an empty buffer to read into")
                if target.len > _LARGE_BYTES:
                    with nogil:
                        size = recv(socket, target.buf, target.len, 0)
                        failure = errno
                else:
                    size = recv(socket, target.buf, target.len, 0)
                    failure = errno
            finally:
                PyBuffer_Release(&target)
            if size > 0:
                reader.buffer_updated(size)
                return
        except Exception as error:
            self.remove(socket)
            reader.reading_ended(error)
            return
        if size < 0 and failure in (EAGAIN, EINTR):
            return
        self.remove(socket)
        reader.reading_ended(None if size == 0 else OSError(failure, os.strerror(failure)))


cdef object _failed():
    cdef int failure = errno
    return OSError(failure, os.strerror(failure))
