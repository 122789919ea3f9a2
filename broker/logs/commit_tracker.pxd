# C types for commit_tracker.py.


cdef class CommitTracker:
    cdef public object _on_flush_wanted
    cdef public object _pending
    cdef public object _sample
    cdef public object commit_times
    cdef public dict dirty
    cdef public Py_ssize_t dirty_bytes
    cdef public object failures
    cdef public Py_ssize_t flush_bytes
    cdef public bint flush_wanted
    cdef public object journal
    cdef public Py_ssize_t journal_max_bytes
    cdef public object space
    cdef public bint waits_for_room

    cpdef object check_room(self, Py_ssize_t size)
    cpdef object check_journal(self, Py_ssize_t bytes_max=*)
    cpdef object note_dirty(self, object partition, object buffers)
    cpdef object appended(self, object partition, Py_ssize_t end_before, Py_ssize_t next_offset, object buffers)
