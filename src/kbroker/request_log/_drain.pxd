"""Transfer of records from the rings to a sink: numbering, folding of idle polls, and one call per record.

Threads: one at a time (the writer's lock, in Python).
"""
from libc.stdint cimport int32_t, int64_t
from kbroker.request_log._log_core cimport LogCore, RequestLogCore
from kbroker.request_log._record_ring cimport Facts, Record, RecordRing

cdef struct RecordSink:
    # False: the record could not be taken, since memory is exhausted.
    bint (*take)(RecordSink *self, const Record *record, int64_t sequence) noexcept nogil
    int64_t (*size_bytes)(RecordSink *self) noexcept nogil      # bytes taken and not yet written

cdef struct DrainCore:
    LogCore *log                # counted
    int64_t sequence            # number of the latest record
    int64_t written             # records taken by the sink
    int64_t lost                # records that the sink could not take
    Facts *folding              # connections with idle polls that wait for the end of their second
    Facts *touched

cdef class RecordDrain:
    cdef DrainCore *core        # owned

cdef class RecordFormat:        # base of classes with a sink
    cdef RecordSink *sink       # set by the subclass
