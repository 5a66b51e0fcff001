"""Decoder of Kafka messages: walks the Plan of a struct over unchecked bytes.

Source: KIP-482 and ``clients/src/main/resources/common/message``. Every length and count is checked against the
remaining bytes before memory is allocated for it.
"""
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Copy, PyDict_SetItem
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject, PyObject_GenericSetAttr
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import uuid as _uuid

from kbroker._core.codec.bytes cimport get_uvarint, load_i16, load_i32, load_i64, load_u16, load_u64
from kbroker.protocol._encoder cimport Plan, fresh_default
from kbroker.protocol._field cimport (
    BOOL, BYTES, FLOAT64, INT8, INT16, INT32, INT64, STRING, STRUCT, UINT16, UUID, Field,
    has_mutable_default)

from kbroker.common.errors import ProtocolError

# A list slot and a dict cost far more than the byte or two that declare them, so the number of array elements in one
# message is bounded: a frame of 100 MiB cannot become 20 GiB of objects. Real messages have far fewer (100,000
# partitions); a server for unknown clients sets a lower bound.
MAX_ELEMENTS = 2_000_000
cpdef enum:
    MAX_STRING_BYTES = 32767  # Kafka rejects longer strings, even where the length field allows them
cdef int64_t ELEMENT_BUDGET = MAX_ELEMENTS
cdef object UUID_TYPE = _uuid.UUID
cdef object UUID_UNKNOWN_SAFETY = _uuid.SafeUUID.unknown
cdef object ZERO_UUID = _uuid.UUID(int=0)
cdef object object_new = object.__new__


cdef struct MessageReader:
    const uint8_t *data
    int64_t size
    int64_t position
    int64_t max_elements
    int64_t elements_left
    PyObject *source            # borrowed: owner of the bytes at `data`


cdef const char *skip_tagged_section(const char *at, const char *end) noexcept nogil:
    """Return the position after the tagged section; NULL when it is incomplete or malformed."""
    cdef uint32_t count = 0, tag = 0, length = 0
    cdef int size = get_uvarint(at, end, &count)
    if size == 0 or <int64_t>count * 2 > end - at - size:
        return NULL
    at += size
    while count > 0:
        size = get_uvarint(at, end, &tag)
        if size == 0:
            return NULL
        at += size
        size = get_uvarint(at, end, &length)
        if size == 0 or length > end - at - size:
            return NULL
        at += size + <int64_t>length
        count -= 1
    return at


cdef int refuse(MessageReader *r, Field *f, str why) except -1:
    raise ProtocolError(f"{<object>f.name}: {why} at byte {r.position} of {r.size}")


cdef inline int need(MessageReader *r, Field *f, int64_t size) except -1:
    if size > r.size - r.position:
        refuse(r, f, f"{size} bytes needed, {r.size - r.position} left")
    return 0


cdef inline int read_varint(MessageReader *r, Field *f, int64_t *out) except -1:
    cdef uint32_t value = 0
    cdef int size = get_uvarint(r.data + r.position, r.data + r.size, &value)
    if size == 0:
        if f is NULL:
            raise ProtocolError(f"tagged section: invalid varint at byte {r.position} of {r.size}")
        refuse(r, f, "invalid varint")
    r.position += size
    out[0] = value
    return 0


cdef inline int read_length(MessageReader *r, Field *f, int prefix_bytes, int64_t *out) except -1:
    """Read a length or count, -1 for null; the caller decides whether null is valid."""
    if f.compact:
        read_varint(r, f, out)
        out[0] -= 1
        return 0
    need(r, f, prefix_bytes)
    if prefix_bytes == 2:
        out[0] = load_i16(r.data + r.position)
    else:
        out[0] = load_i32(r.data + r.position)
    r.position += prefix_bytes
    if out[0] < 0:  # Kafka reads every negative length as null
        out[0] = -1
    return 0


cdef object read_uuid(const uint8_t *at):
    cdef uint64_t high = load_u64(at), low = load_u64(at + 8)
    if high == 0 and low == 0:
        return ZERO_UUID
    number = (<object>high << 64) | low
    out = object_new(UUID_TYPE)  # the constructor costs ten times as much
    PyObject_GenericSetAttr(out, "int", number)
    PyObject_GenericSetAttr(out, "is_safe", UUID_UNKNOWN_SAFETY)
    return out


cdef object read_variable(MessageReader *r, Field *f, bint nullable):
    cdef int64_t length = 0
    read_length(r, f, 2 if f.kind == STRING else 4, &length)
    if length < 0:
        if not nullable:
            refuse(r, f, "null is not allowed")
        return None
    if f.kind == STRING and length > MAX_STRING_BYTES:
        refuse(r, f, f"a string of {length} bytes, of at most {MAX_STRING_BYTES}")
    need(r, f, length)
    cdef const char *at = <const char *>r.data + r.position
    r.position += length
    if f.kind == STRING:
        return PyUnicode_DecodeUTF8(at, length, "surrogateescape")
    if f.kind == BYTES:
        return PyBytes_FromStringAndSize(at, length)
    view = PyMemoryView_FromObject(<object>r.source)
    if view.itemsize != 1 or view.ndim != 1:
        view = view.cast("B")
    return view[r.position - length:r.position]


cdef object read_value(MessageReader *r, Field *f, bint nullable):
    """Read one value: a field's, or one element of its array."""
    cdef uint8_t kind = f.kind
    cdef const uint8_t *at = r.data + r.position
    cdef uint64_t bits
    cdef double number
    if kind == INT32:
        need(r, f, 4)
        r.position += 4
        return load_i32(at)
    if kind == STRING:
        return read_variable(r, f, nullable)
    if kind == STRUCT:
        if nullable:
            need(r, f, 1)
            r.position += 1
            if <int8_t>at[0] < 0 or (f.tag >= 0 and at[0] == 0):  # a tagged field has a varint there
                return None
        return read_struct(r, <Plan>f.child)
    if kind == INT16:
        need(r, f, 2)
        r.position += 2
        return load_i16(at)
    if kind == INT64:
        need(r, f, 8)
        r.position += 8
        return load_i64(at)
    if kind == INT8:
        need(r, f, 1)
        r.position += 1
        return <int8_t>at[0]
    if kind == BOOL:
        need(r, f, 1)
        r.position += 1
        return at[0] != 0
    if kind == UUID:
        need(r, f, 16)
        r.position += 16
        return read_uuid(at)
    if kind == UINT16:
        need(r, f, 2)
        r.position += 2
        return load_u16(at)
    if kind == FLOAT64:
        need(r, f, 8)
        r.position += 8
        bits = load_u64(at)
        memcpy(&number, &bits, 8)
        return number
    return read_variable(r, f, nullable)


cdef object read_array(MessageReader *r, Field *f):
    cdef int64_t count = 0, i
    cdef object item
    cdef list out
    read_length(r, f, 4, &count)
    if count < 0:
        if not f.nullable:
            refuse(r, f, "null is not allowed")
        return None
    # Check the minimum size of the elements before any list is created.
    if count * f.element_bytes > r.size - r.position:
        refuse(r, f, f"{count} elements of at least {f.element_bytes} bytes, {r.size - r.position} left")
    r.elements_left -= count
    if r.elements_left < 0:
        refuse(r, f, f"more than {r.max_elements} array elements in one message")
    out = PyList_New(count)
    for i in range(count):
        item = read_value(r, f, False)
        Py_INCREF(item)
        PyList_SET_ITEM(out, i, item)
    return out


cdef int read_tagged(MessageReader *r, Plan plan, dict out) except -1:
    cdef int64_t count = 0, tag = 0, length = 0, end, whole
    cdef Py_ssize_t i
    cdef Field *f
    read_varint(r, NULL, &count)
    if count * 2 > r.size - r.position:
        raise ProtocolError(f"{plan.name}: {count} tagged fields, {r.size - r.position} bytes left")
    while count > 0:
        count -= 1
        read_varint(r, NULL, &tag)
        read_varint(r, NULL, &length)
        if length > r.size - r.position:
            raise ProtocolError(f"{plan.name}: tag {tag} of {length} bytes, {r.size - r.position} left")
        end = r.position + length
        f = NULL
        for i in range(plan.count - plan.tagged_count, plan.count):
            if plan.fields[i].tag == tag:
                f = &plan.fields[i]
                break
        if f is NULL:  # from a newer version: skipped by its size, in any order, any number of times
            r.position = end
            continue
        whole, r.size = r.size, end  # the value must not extend beyond its field
        try:
            PyDict_SetItem(out, <object>f.name, read_array(r, f) if f.is_array else read_value(r, f, f.nullable))
        finally:
            r.size = whole
        if r.position != end:
            refuse(r, f, f"tagged field of {length} bytes ends {end - r.position} bytes early")
    return 0


cdef dict read_struct(MessageReader *r, Plan plan):
    cdef dict out = PyDict_Copy(plan.template)
    cdef Py_ssize_t i
    cdef Field *f
    for i in range(plan.count):
        f = &plan.fields[i]
        if f.present and f.tag < 0:
            PyDict_SetItem(out, <object>f.name, read_array(r, f) if f.is_array else read_value(r, f, f.nullable))
        elif has_mutable_default(f):
            PyDict_SetItem(out, <object>f.name, fresh_default(f))
    if plan.flexible:
        read_tagged(r, plan, out)
    return out


cdef dict read_message(Plan plan, object data, Py_ssize_t offset, int64_t max_elements, int64_t *end):
    """Decode one struct of `data`, and set ``end`` to the position after it."""
    cdef Py_buffer buffer
    cdef MessageReader r
    cdef dict out
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if offset < 0 or offset > buffer.len:
            raise ValueError(f"offset {offset} is outside the {buffer.len} bytes of data")
        r.data, r.size, r.position = <const uint8_t *>buffer.buf, buffer.len, offset
        r.max_elements = r.elements_left = max_elements
        r.source = <PyObject *>data
        out = read_struct(&r, plan)
        end[0] = r.position
        return out
    finally:
        PyBuffer_Release(&buffer)


def decode_from(Plan plan not None, data, Py_ssize_t offset=0):
    """Decode one struct of `data`; return it and the position after it.

    Args:
        plan: the struct's Plan.
        data: any contiguous buffer; memoryviews of `records` fields keep it alive.
        offset: first byte of the struct.

    Returns: (dict with every field of the table, absent ones at their default; position of the byte after it).

    Raises: ProtocolError: the bytes are not such a struct. ValueError: `offset` is outside `data`.
    """
    cdef int64_t end = 0
    out = read_message(plan, data, offset, ELEMENT_BUDGET, &end)
    return out, end


def decode(Plan plan not None, data, Py_ssize_t offset=0, int64_t max_elements=ELEMENT_BUDGET):
    """Decode one struct like decode_from, without the position; bytes after the struct are ignored, as in Kafka.

    Args:
        max_elements: maximum number of elements of all its arrays together.
    """
    cdef int64_t end = 0
    if max_elements < 0:
        raise ValueError(f"max_elements must be >= 0, got {max_elements}")
    return read_message(plan, data, offset, max_elements, &end)


def skip_tags(data, Py_ssize_t offset=0):
    """Return the position after the tagged section at `offset`, without allocating memory for its fields.

    Raises: ProtocolError: it is incomplete or malformed.
    """
    cdef const uint8_t[::1] view = data
    if offset < 0 or offset > view.shape[0]:
        raise ValueError(f"offset {offset} is outside the {view.shape[0]} bytes of data")
    cdef const char *data_at = <const char *>&view[0] if view.shape[0] > 0 else NULL
    cdef const char *end = skip_tagged_section(data_at + offset, data_at + view.shape[0])
    if end is NULL:
        raise ProtocolError(f"malformed tagged section at byte {offset}")
    return end - data_at
