"""Table-driven codec of Kafka messages: one Plan per struct, version and direction, walked by one interpreter.

A Plan never changes after build() and may be used by any thread. Bodies are dicts; the caller keeps them still while
they are encoded.
"""
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef enum Kind:
    BOOL, INT8, INT16, UINT16, INT32, INT64, FLOAT64, UUID, STRING, BYTES, RECORDS, STRUCT

cdef struct Field:
    uint8_t kind                # a Kind: of the field, or of the elements of an array
    bint is_array
    bint nullable
    bint compact                # lengths as unsigned varints, plus one
    bint present                # this version has the field
    bint ignorable              # absent from this version: a value is dropped without a word
    int32_t tag                 # -1: not in the tagged section
    int64_t element_bytes       # least size of one array element on the wire
    PyObject *name              # borrowed from Plan.owned, like the next three
    PyObject *default           # None, a scalar, an empty list, or a dict (copied for each reader)
    PyObject *encoded_default   # bytes that stand for a missing key; unused for tagged and absent fields
    PyObject *child             # Plan of a struct or of an array's structs, else NULL

cdef class Plan:
    cdef:
        readonly str name
        readonly bint flexible
        readonly int64_t min_bytes  # least size of the struct on the wire
        Field *fields               # owned
        Py_ssize_t count
        Py_ssize_t tagged_count     # present fields of the tagged section, ascending, at the end of fields
        dict template               # every field with its default: what a reader starts from
        list owned                  # keeps the borrowed objects alive

# Position after an unsigned varint of at most 5 bytes at `position`, or -1 when it is cut or above 2^31 - 1.
cdef int64_t read_unsigned_varint(const char *data, int64_t size_bytes, int64_t position, uint32_t *out) noexcept nogil
# Position after a whole tagged section whose fields nobody wants, or -1. Takes no memory.
cdef int64_t skip_tagged_section(const char *data, int64_t size_bytes, int64_t position) noexcept nogil
