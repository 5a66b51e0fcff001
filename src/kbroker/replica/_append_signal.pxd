"""Signal of appends to watched partitions, for a thread that needs the GIL; see _append_signal.pyx."""
from libc.stdint cimport int64_t
from kbroker._core.containers.hash_table cimport HashTable
from kbroker._core.sync cimport AtomicI64, Cond, Mutex, atomic_load_seq
from kbroker.log._partition cimport Partition

cdef struct WatchedPartition

cdef struct AppendSignalCore:   # counted
    AtomicI64 refs
    AtomicI64 watched           # number of watched partitions, read without the lock
    Mutex lock                  # a leaf; guards all below
    Cond changed
    HashTable table             # of WatchedPartition, by the address of the partition
    WatchedPartition *first     # had an append; in order
    WatchedPartition *last
    bint is_closed

cdef AppendSignalCore *append_signal_retain(AppendSignalCore *signal) noexcept nogil
cdef void append_signal_release(AppendSignalCore *signal) noexcept nogil
cdef void append_signal_raise(AppendSignalCore *signal, Partition *partition) noexcept nogil


cdef inline void append_signal(AppendSignalCore *signal, Partition *partition) noexcept nogil:
    """Signal that the high watermark or the last stable offset of a partition has moved, or that it was closed."""
    if signal != NULL and atomic_load_seq(&signal.watched) != 0:
        append_signal_raise(signal, partition)


cdef class AppendSignal:
    cdef AppendSignalCore *core
