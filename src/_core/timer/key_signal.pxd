"""A signal of events about watched keys, for one thread that needs the GIL.

An event costs one load while no key is watched, and a look-up under a leaf lock otherwise. A watch ends with the next
event of its key, so that a busy key wakes the thread only as often as it is watched again.
"""
from libc.stdint cimport int64_t
from kbroker._core.containers.hash_table cimport HashTable
from kbroker._core.sync cimport AtomicI64, Cond, Mutex, atomic_load_seq

cdef struct WatchedKey

cdef struct KeySignalCore:      # counted
    AtomicI64 refs
    AtomicI64 watched           # number of watched keys, read without the lock
    Mutex lock                  # a leaf; guards all below
    Cond changed
    HashTable table             # WatchedKey entries
    WatchedKey *first           # had an event; in order
    WatchedKey *last
    bint is_closed

cdef KeySignalCore *key_signal_retain(KeySignalCore *signal) noexcept nogil
cdef void key_signal_release(KeySignalCore *signal) noexcept nogil      # NULL: no effect
cdef void key_signal_raise(KeySignalCore *signal, int64_t high, int64_t low) noexcept nogil


cdef inline void key_signal(KeySignalCore *signal, int64_t high, int64_t low) noexcept nogil:
    """Signal an event of a key, if it is watched. The signal may be NULL."""
    if signal != NULL and atomic_load_seq(&signal.watched) != 0:
        key_signal_raise(signal, high, low)


cdef class KeySignal:
    cdef KeySignalCore *core
    cdef list taken(self, bint waits)
