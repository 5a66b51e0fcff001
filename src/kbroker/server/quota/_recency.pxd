"""Which of many things was used the longest ago: a heap by the time of use, brought up to date only where it is asked.

Noting a use costs nothing here: whoever asks for the oldest compares its key with the time that the thing itself keeps,
and calls ``recency_renew`` where that is later. So the answer is exact, and each renewal is paid for by a use.
Threads: no lock inside; guarded by its owner's.
"""
from libc.stdint cimport int64_t

cdef struct RecencyEntry:       # part of the thing, which stays where it is
    int64_t used_ms             # no later than the true time of its latest use
    int64_t place               # in the heap, counted from 1; 0: not in it

cdef struct Recency:
    RecencyEntry **heap         # owned
    int64_t count
    int64_t capacity

cdef bint recency_add(Recency *recency, RecencyEntry *entry, int64_t used_ms) noexcept nogil     # false: memory is out
cdef void recency_remove(Recency *recency, RecencyEntry *entry) noexcept nogil      # one that is not in it too
cdef void recency_renew(Recency *recency, RecencyEntry *entry, int64_t used_ms) noexcept nogil   # a later time
cdef RecencyEntry *recency_oldest(const Recency *recency) noexcept nogil            # NULL: there is none
cdef void recency_clear(Recency *recency) noexcept nogil
