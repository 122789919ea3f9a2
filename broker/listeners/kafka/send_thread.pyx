# cython: language_level=3
"""A thread that sends large answers beside the event loop, without the interpreter's lock.

What it does not touch makes it right: no Python object is looked at in the thread. A job is a copy of addresses and
sizes; whoever submitted it keeps the objects behind them until `finish` or `cancel` says that the thread is through.

Jobs take turns, a step each: 256 KiB, or what the socket takes. A job whose socket is full waits for room in the
thread's own epoll. All methods are for one thread, that of the event loop.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.types cimport off_t
from posix.unistd cimport close, getpid, read, write

import os

from semel.runtime.storage import FileRange


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t *, void *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(pthread_t, void **)
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    int pthread_mutex_destroy(pthread_mutex_t *)
    int pthread_cond_init(pthread_cond_t *, void *)
    int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *)
    int pthread_cond_signal(pthread_cond_t *)
    int pthread_cond_destroy(pthread_cond_t *)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_BLOCK
    int SIG_SETMASK
    int sigfillset(sigset_t *)
    int pthread_sigmask(int, sigset_t *, sigset_t *)

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL
    uint32_t EPOLLIN, EPOLLOUT, EPOLLONESHOT
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event *)
    int epoll_wait(int, epoll_event *, int, int)

cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC, EFD_NONBLOCK
    int eventfd(unsigned int, int)

cdef extern from "<sys/socket.h>" nogil:
    int MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL
    ssize_t send(int, const void *, size_t, int)

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t sendfile(int, int, off_t *, size_t)


cdef enum:
    JOBS = 1024  # so many at once; beyond it the event loop sends for itself
    PIECES = 24  # so many has a job at most: an answer's beginning, and two for each partition
    STEP = 262144  # so many bytes has a job's turn
    EVENTS = 64
    WAKE = 0x7FFFFFFF  # in place of a job's number
    ENDED_EARLY = -1  # the error of a file that is shorter than what was promised of it

cdef enum State:
    FREE
    READY
    RUNNING
    BLOCKED
    DONE

cdef struct Piece:
    const char *data  # NULL: a range of the file
    int file
    off_t position
    size_t size

cdef struct Job:
    State state
    uint32_t run  # which job of this place it is: an event may be of one before it
    int socket
    int error
    bint cancelled
    bint told  # whether the event loop wants to know of its end
    bint listed  # whether it is among those that `finished` returns
    bint armed  # whether the thread's epoll will tell of the socket
    int next_piece
    int pieces
    size_t sent
    size_t sent_of_files
    int before  # its neighbours in the list of those that are ready, or of those that are done and told
    int behind
    Piece piece[PIECES]

cdef struct Line:
    int first
    int last

cdef struct Shared:
    pthread_t thread
    pthread_mutex_t lock
    pthread_cond_t stepped
    bint sleeping
    bint stopping
    int unfinished
    int epoll
    int wake
    int told
    Line ready
    Line finished
    Job jobs[JOBS]


cdef inline void join(Shared *shared, Line *line, int number) noexcept nogil:
    cdef Job *job = &shared.jobs[number]
    job.before, job.behind = line.last, -1
    if line.last >= 0:
        shared.jobs[line.last].behind = number
    else:
        line.first = number
    line.last = number


cdef inline void leave(Shared *shared, Line *line, int number) noexcept nogil:
    cdef Job *job = &shared.jobs[number]
    if job.before >= 0:
        shared.jobs[job.before].behind = job.behind
    else:
        line.first = job.behind
    if job.behind >= 0:
        shared.jobs[job.behind].before = job.before
    else:
        line.last = job.before


cdef inline void ring(int descriptor) noexcept nogil:
    """Make an eventfd readable. It fails only where it is readable already."""
    cdef uint64_t one = 1
    write(descriptor, &one, sizeof(one))


cdef State step(Job *job) noexcept nogil:
    """Send up to a step of a job. Returns what it is then."""
    cdef Piece *piece
    cdef ssize_t sent
    cdef size_t before = job.sent
    cdef off_t position
    while job.sent - before < STEP:
        piece = &job.piece[job.next_piece]
        if piece.data != NULL:
            sent = send(
                job.socket, piece.data, piece.size,
                MSG_DONTWAIT | MSG_NOSIGNAL | (MSG_MORE if job.next_piece + 1 < job.pieces else 0),
            )
        else:
            position = piece.position
            sent = sendfile(job.socket, piece.file, &position, min(piece.size, <size_t> STEP))
            if sent == 0:
                job.error = ENDED_EARLY
                return DONE
        if sent < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                return BLOCKED
            job.error = errno
            return DONE
        job.sent += sent
        if piece.data != NULL:
            piece.data += sent
        else:
            piece.position += sent
            job.sent_of_files += sent
        piece.size -= sent
        if piece.size == 0:
            job.next_piece += 1
            if job.next_piece == job.pieces:
                return DONE
    return READY


cdef void wait_for_room(Shared *shared, int number) noexcept nogil:
    """Have the epoll tell once when the job's socket takes more."""
    cdef Job *job = &shared.jobs[number]
    cdef epoll_event event
    event.events = EPOLLOUT | EPOLLONESHOT
    event.data.u64 = (<uint64_t> job.run << 32) | <uint64_t> number
    job.armed = True
    # The socket may be known from a job before.
    if epoll_ctl(shared.epoll, EPOLL_CTL_MOD, job.socket, &event) == 0:
        return
    if epoll_ctl(shared.epoll, EPOLL_CTL_ADD, job.socket, &event) < 0:
        job.error = errno
        job.armed = False


cdef void end(Shared *shared, int number) noexcept nogil:
    cdef Job *job = &shared.jobs[number]
    job.state = DONE
    shared.unfinished -= 1
    if job.told or job.error:
        job.listed = True
        join(shared, &shared.finished, number)
        ring(shared.told)


cdef void look_for_room(Shared *shared, bint may_wait) noexcept nogil:
    """Note whose sockets take more. The lock is held, but for the wait."""
    cdef epoll_event events[EVENTS]
    cdef uint64_t rung
    cdef uint32_t number
    cdef Job *job
    cdef int count, n
    shared.sleeping = may_wait
    pthread_mutex_unlock(&shared.lock)
    count = epoll_wait(shared.epoll, events, EVENTS, -1 if may_wait else 0)
    pthread_mutex_lock(&shared.lock)
    shared.sleeping = False
    for n in range(count):
        number = <uint32_t> events[n].data.u64
        if number == WAKE:
            read(shared.wake, &rung, sizeof(rung))
            continue
        job = &shared.jobs[number]
        if job.state == BLOCKED and job.run == <uint32_t> (events[n].data.u64 >> 32):
            job.state = READY
            job.armed = False
            join(shared, &shared.ready, number)


cdef void *run(void *argument) noexcept nogil:
    cdef Shared *shared = <Shared *> argument
    cdef Job *job
    cdef State state
    cdef int number
    pthread_mutex_lock(&shared.lock)
    while not shared.stopping:
        look_for_room(shared, shared.ready.first < 0)
        number = shared.ready.first
        if number < 0 or shared.stopping:
            continue
        leave(shared, &shared.ready, number)
        job = &shared.jobs[number]
        job.state = RUNNING
        pthread_mutex_unlock(&shared.lock)
        state = step(job)
        pthread_mutex_lock(&shared.lock)
        if job.cancelled:
            job.state = DONE
            shared.unfinished -= 1
            pthread_cond_signal(&shared.stepped)
            continue
        if state == BLOCKED:
            wait_for_room(shared, number)
            if job.error:
                state = DONE
        if state == DONE:
            end(shared, number)
            continue
        job.state = state
        if state == READY:
            join(shared, &shared.ready, number)
    pthread_mutex_unlock(&shared.lock)
    return NULL


cdef void release(Shared *shared) noexcept nogil:
    if shared.told >= 0:
        close(shared.told)
    if shared.wake >= 0:
        close(shared.wake)
    if shared.epoll >= 0:
        close(shared.epoll)
    free(shared)


@cython.no_gc_clear  # a thread may read what a collection of garbage would clear, until `__dealloc__` has ended it
cdef class SendThread:
    """Sends jobs, each the parts of answers of one connection, in their order."""

    cdef Shared *_shared
    cdef list _kept
    cdef list _places
    cdef int _process

    def __cinit__(self):
        """Start the thread. Raises `OSError`."""
        cdef sigset_t all_signals, before
        cdef epoll_event event
        cdef int failed
        self._shared = <Shared *> calloc(1, sizeof(Shared))
        if self._shared == NULL:
            raise MemoryError
        cdef Shared *shared = self._shared
        self._process = getpid()
        shared.ready.first = shared.ready.last = shared.finished.first = shared.finished.last = -1
        shared.epoll, shared.wake, shared.told = epoll_create1(EPOLL_CLOEXEC), -1, -1
        if shared.epoll >= 0:
            shared.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if shared.wake >= 0:
            shared.told = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        event.events, event.data.u64 = EPOLLIN, WAKE
        failed = errno if shared.told < 0 or epoll_ctl(shared.epoll, EPOLL_CTL_ADD, shared.wake, &event) < 0 else 0
        if not failed:
            pthread_mutex_init(&shared.lock, NULL)
            pthread_cond_init(&shared.stepped, NULL)
            # Signals are for the threads of Python.
            sigfillset(&all_signals)
            pthread_sigmask(SIG_BLOCK, &all_signals, &before)
            failed = pthread_create(&shared.thread, NULL, run, shared)
            pthread_sigmask(SIG_SETMASK, &before, NULL)
        if failed:
            self._shared = NULL
            release(shared)
            raise OSError(failed, f"a thread that sends could not be started: {os.strerror(failed)}")
        self._kept = [None] * JOBS
        self._places = list(range(JOBS - 1, -1, -1))

    def __dealloc__(self):
        self._end()

    def close(self):
        """End the thread, after the step that it is at. Jobs that are not finished are dropped, and it takes no more."""
        self._end()
        self._kept, self._places = [], []

    cdef _end(self):
        shared, self._shared = self._shared, NULL
        if shared == NULL:
            return
        if self._process != getpid():
            return  # a forked child has none of the threads
        pthread_mutex_lock(&shared.lock)
        shared.stopping = True
        pthread_mutex_unlock(&shared.lock)
        ring(shared.wake)
        with nogil:
            pthread_join(shared.thread, NULL)
        pthread_mutex_destroy(&shared.lock)
        pthread_cond_destroy(&shared.stepped)
        release(shared)

    def fileno(self):
        """Return the descriptor that is readable while there are jobs for `finished`; -1 after `close`."""
        return -1 if self._shared == NULL else self._shared.told

    @property
    def unfinished(self):
        """How many jobs it has."""
        return 0 if self._shared == NULL else self._shared.unfinished

    def submit(self, int socket, parts, when_told):
        """Begin to send; returns the job, or -1 where it takes none: of too many parts, of files that are none of the
        system's, or beside so many others.

        when_told: what `finished` returns for it
        Nobody may write to the socket, nor close it, before `finish` has said that it is done, or `cancel`.
        """
        cdef Shared *shared = self._shared
        cdef Job *job
        cdef Piece *piece
        cdef bint sleeping
        cdef bytes data
        cdef int number
        if not self._places or len(parts) > PIECES:
            return -1
        kept = []
        number = self._places[len(self._places) - 1]
        job = &shared.jobs[number]
        job.pieces = 0
        for part in parts:
            piece = &job.piece[job.pieces]
            if isinstance(part, FileRange):
                file = part.file
                kept.append(file)
                piece.size = part.size
                piece.data, piece.file, piece.position = NULL, file.fileno(), part.position
                if piece.file < 0:
                    return -1
            else:
                data = part if type(part) is bytes else bytes(part)
                kept.append(data)
                piece.data, piece.size = PyBytes_AS_STRING(data), len(data)
            if piece.size > 0:
                job.pieces += 1
        if job.pieces == 0:
            return -1
        self._places.pop()
        self._kept[number] = kept, when_told
        job.run += 1
        job.socket = socket
        job.error = job.next_piece = 0
        job.sent = job.sent_of_files = 0
        job.cancelled = job.told = job.listed = job.armed = False
        pthread_mutex_lock(&shared.lock)
        job.state = READY
        join(shared, &shared.ready, number)
        shared.unfinished += 1
        sleeping, shared.sleeping = shared.sleeping, False
        pthread_mutex_unlock(&shared.lock)
        if sleeping:
            ring(shared.wake)
        return number

    def finish(self, int number):
        """Return how many bytes a job sent, and how many of them from files, and forget it; None while it is not done.

        In that case it will be among those that are `finished`. Raises `OSError` where it failed; it is forgotten then.
        """
        cdef Shared *shared = self._shared
        cdef Job *job
        cdef bint done
        if shared == NULL:
            raise OSError("the thread that sends has ended")
        job = &shared.jobs[number]
        pthread_mutex_lock(&shared.lock)
        done = job.state == DONE
        if not done:
            job.told = True
        pthread_mutex_unlock(&shared.lock)
        if not done:
            return None
        error = job.error
        outcome = self._forget(number)
        if error == ENDED_EARLY:
            raise OSError("a file ends before a position that was promised to a peer")
        if error:
            raise OSError(error, os.strerror(error))
        return outcome

    def sent(self, int number):
        """Return how many bytes of a job are sent so far."""
        return 0 if self._shared == NULL else self._shared.jobs[number].sent

    def cancel(self, int number):
        """Forget a job, when the thread has made the step that it is at. Returns what it sent, as `finish`."""
        cdef Shared *shared = self._shared
        cdef Job *job
        if shared == NULL:
            return 0, 0
        job = &shared.jobs[number]
        with nogil:
            pthread_mutex_lock(&shared.lock)
            if job.state == RUNNING:
                job.cancelled = True
                while job.state == RUNNING:
                    pthread_cond_wait(&shared.stepped, &shared.lock)
            elif job.state == READY:
                leave(shared, &shared.ready, number)
                shared.unfinished -= 1
            elif job.state == BLOCKED:
                shared.unfinished -= 1
            if job.state != DONE:
                job.state = DONE
            pthread_mutex_unlock(&shared.lock)
        return self._forget(number)

    def finished(self):
        """Return the `when_told` of the jobs that `finish` was asked for before they were done, and of those that failed."""
        cdef Shared *shared = self._shared
        cdef uint64_t rung
        if shared == NULL:
            return []
        read(shared.told, &rung, sizeof(rung))
        found = []
        pthread_mutex_lock(&shared.lock)
        while shared.finished.first >= 0:
            found.append(self._kept[shared.finished.first][1])
            shared.jobs[shared.finished.first].listed = False
            leave(shared, &shared.finished, shared.finished.first)
        pthread_mutex_unlock(&shared.lock)
        return found

    cdef _forget(self, int number):
        """Make a job's place free again."""
        cdef Shared *shared = self._shared
        cdef Job *job = &shared.jobs[number]
        pthread_mutex_lock(&shared.lock)
        if job.listed:
            job.listed = False
            leave(shared, &shared.finished, number)
        if job.armed:
            epoll_ctl(shared.epoll, EPOLL_CTL_DEL, job.socket, NULL)
        job.state = FREE
        pthread_mutex_unlock(&shared.lock)
        self._kept[number] = None
        self._places.append(number)
        return job.sent, job.sent_of_files
