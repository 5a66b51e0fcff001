"""The native part of the request log: recorders of finished requests, and the rings to the writer's thread.

Locks: ``late_lock`` (the ring for threads other than network threads, and the list of threads) and ``wake_lock`` (the
writer's sleep) are leaves. The rings have one producer each; one thread at a time drains them (the writer's lock, in
Python). Ownership: counted by the handle, by each recorder, and by the source of connection verdicts.
"""
from libc.stdint cimport int64_t, uint64_t
from kbroker._core.clock cimport Clock, Waker
from kbroker._core.sync cimport AtomicI64, Cond, Mutex
from kbroker.network._request_metrics cimport Recorder, RequestRecorder
from kbroker.quota._quota_events cimport VerdictEvent, VerdictListener
from kbroker.request_log._record_ring cimport Facts, RecordRing

cdef enum:
    KNOWN_APIS = 128
    PROTOCOL_BYTES = 32

cdef struct LogCore:
    VerdictListener listener    # first
    AtomicI64 refs
    Clock *clock                # counted
    double sampling
    bint is_known[KNOWN_APIS]
    ThreadRecorder *threads     # late_lock; they live as long as the core
    Mutex late_lock
    RecordRing late
    Mutex wake_lock
    Cond wake
    AtomicI64 is_waiting
    bint is_woken               # wake_lock
    Waker waker

cdef struct ThreadRecorder:     # of one network thread
    Recorder recorder           # first: the network layer uses only this
    ThreadRecorder *next
    LogCore *log                # not counted: its owner holds one count for all
    RecordRing ring
    uint64_t random
    char protocol[PROTOCOL_BYTES]

cdef struct MetricSources:      # attached to a channel; only its network thread uses it
    Facts *facts                # one count
    int64_t spare               # further counts of facts, each passed to a record
    int64_t software            # ClientSoftware.number in the facts; 0: unknown

cdef LogCore *log_retain(LogCore *log) noexcept nogil
cdef void log_release(LogCore *log) noexcept nogil

cdef class RequestLogCore:
    cdef LogCore *log           # counted
    cdef object _clock

cdef class RequestLogRecorder(RequestRecorder):
    cdef RequestLogCore owner
