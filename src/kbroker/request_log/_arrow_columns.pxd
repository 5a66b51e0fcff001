"""Records as Arrow columns: native buffers, one set for each partition of the topic. Threads: one at a time."""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.containers.buffer cimport Buffer
from kbroker.request_log._drain cimport RecordFormat, RecordSink
from kbroker.request_log._log_core cimport KNOWN_APIS

cdef enum:
    MOST_COLUMNS = 80           # maximum: columns of a record and of the elements of its lists

cdef struct ColumnBuffers:
    int32_t width               # bytes of a value; 0: a text; -1: a list, which has offsets only
    int64_t count
    int64_t nulls
    Buffer values               # of a text: all of them, concatenated
    Buffer offsets              # int32, of texts and lists: one more than values
    Buffer is_valid             # one byte per value

cdef struct RowSet:
    int64_t row_count
    int64_t size_bytes
    int64_t last_time_us
    int64_t verdict_count
    int64_t update_count
    int64_t shadow_count
    int64_t append_count
    bint failed                 # memory was exhausted in the middle of a row: the set is discarded
    ColumnBuffers columns[MOST_COLUMNS]

cdef struct ArrowCore:
    RecordSink sink             # first
    int32_t broker
    int32_t set_count
    RowSet *sets                # owned
    const char *api_names[KNOWN_APIS]   # NULL: unknown
    int64_t lost

cdef class ArrowColumns(RecordFormat):
    cdef ArrowCore *core        # owned
