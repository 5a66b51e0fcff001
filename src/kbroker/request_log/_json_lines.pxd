"""Records as JSON objects: lines of a file, values of a topic, or both."""
from libc.stdint cimport int32_t, int64_t
from kbroker.request_log._drain cimport RecordFormat, RecordSink
from kbroker.request_log._log_core cimport KNOWN_APIS
from kbroker.request_log._record_batches cimport TopicBatches
from kbroker.request_log._json_format cimport Buffer

cdef struct Words:              # fixed text at the beginning of an object
    int64_t size_bytes
    char data[60]

cdef struct JsonCore:
    RecordSink sink             # first
    bint wants_lines
    int64_t second              # since 1970: second of ``begun``
    Words begun                 # an object up to the fraction of its second
    Words numbered              # the text between its time and its number
    char *api_names[KNOWN_APIS]     # owned, in JSON; NULL: unknown
    int64_t api_name_bytes[KNOWN_APIS]
    Buffer lines
    Buffer object               # the current object
    Buffer key
    int64_t line_count
    TopicBatches batches

cdef class JsonLines(RecordFormat):
    cdef JsonCore *core         # owned
