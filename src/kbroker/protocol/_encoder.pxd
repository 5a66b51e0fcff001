"""Table-driven codec of Kafka messages: one Plan per struct, version and direction, walked by one interpreter.

A Plan never changes after build(), and any thread may use it. Bodies are dicts; the caller must not change them while
they are encoded.
"""
from libc.stdint cimport int64_t
from kbroker.protocol._field cimport Field

cdef class Plan:
    cdef:
        readonly str name
        readonly bint flexible
        readonly int64_t min_bytes  # minimum size of the struct on the wire
        Field *fields               # owned
        Py_ssize_t count
        Py_ssize_t tagged_count     # present fields of the tagged section, ascending, at the end of fields
        dict template               # every field with its default: initial value of a decoded struct
        list owned                  # keeps the borrowed objects alive

# Return a new value for a field whose default must not be shared: an array or a struct.
cdef object fresh_default(Field *f)
