"""Layout of one field in one version of a struct: an entry of a Plan."""
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum Kind:
    BOOL, INT8, INT16, UINT16, INT32, INT64, FLOAT64, UUID, STRING, BYTES, RECORDS, STRUCT

cdef struct Field:
    uint8_t kind                # a Kind: of the field, or of the elements of an array
    bint is_array
    bint nullable
    bint compact                # lengths as unsigned varints, plus one
    bint present                # this version has the field
    bint ignorable              # absent from this version: its value is dropped silently
    int32_t tag                 # -1: not in the tagged section
    int64_t element_bytes       # minimum size of one array element on the wire
    PyObject *name              # borrowed from Plan.owned, like the next three
    PyObject *default           # None, a scalar, an empty list, or a dict (copied for each reader)
    PyObject *encoded_default   # encoding of a missing key; unused for tagged and absent fields
    PyObject *child             # Plan of a struct or of an array's structs, else NULL

# Return whether the default must not be shared: every decoded struct gets its own.
cdef inline bint has_mutable_default(Field *f) noexcept:
    if <object>f.default is None:
        return False
    return f.is_array or f.kind == STRUCT
