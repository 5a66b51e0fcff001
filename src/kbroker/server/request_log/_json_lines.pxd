"""Records as JSON objects: lines of a file, values of a topic, or both."""
from libc.stdint cimport int32_t, int64_t
from kbroker.server.request_log._drain cimport RecordFormat, RecordSink
from kbroker.server.request_log._log_core cimport KNOWN_APIS
from kbroker.server.request_log._record_batches cimport TopicBatches
from kbroker.server.request_log._text cimport Buffer

cdef struct JsonCore:
    RecordSink sink             # first
    int32_t broker
    bint wants_lines
    char *api_names[KNOWN_APIS]     # owned; NULL: unknown
    Buffer lines
    Buffer object               # the object that is being written
    Buffer key
    int64_t line_count
    TopicBatches batches

cdef class JsonLines(RecordFormat):
    cdef JsonCore *core         # owned
