# C types for journal_runs.py.
cimport cython
from libc.stdint cimport int64_t

from semel.broker.log.journal_format cimport JournalEntry
from semel.protocol.batch_header cimport BatchHeader, read_header
from semel.protocol.buffers cimport address_of, are_same


@cython.locals(
    entry=JournalEntry, header=BatchHeader, data=bytes, log=cython.p_const_uchar, journal=cython.p_const_uchar,
    log_size=cython.Py_ssize_t, log_at=cython.Py_ssize_t, number=cython.Py_ssize_t, count=cython.Py_ssize_t,
    position=cython.Py_ssize_t, end=cython.Py_ssize_t, here=cython.Py_ssize_t, size=cython.Py_ssize_t, wanted=int64_t,
)
cpdef tuple compare_entries(list entries, Py_ssize_t begin, int64_t floor, bytes piece)
@cython.locals(
    entry=JournalEntry, header=BatchHeader, number=cython.Py_ssize_t, count=cython.Py_ssize_t,
    position=cython.Py_ssize_t, end=cython.Py_ssize_t, batches=cython.Py_ssize_t, found=cython.Py_ssize_t,
)
cpdef tuple count_following(list entries, Py_ssize_t begin, int64_t end_offset)
