# cython: freethreading_compatible=True
"""Table-driven codec of Kafka messages (wire grammar: KIP-482 and ``clients/src/main/resources/common/message``).

Why a table and not generated code: one interpreter serves every message in 100 KiB, and encodes faster than one C
function per message version does, because its working set stays in the cache.
"""
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Copy, PyDict_SetItem
from cpython.float cimport PyFloat_AsDouble
from cpython.list cimport PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_Check
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject, PyObject_GenericSetAttr
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t)
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

import uuid as _uuid

from kbroker.common.errors import ProtocolError

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **target, Py_ssize_t size) except -1
    PyObject *PyDict_GetItemWithError(object mapping, object key) except? NULL
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

# A list slot and a dict cost far more than the byte or two that may declare them, so one message may hold only so many
# array elements: a frame of 100 MiB cannot become 20 GiB of objects. Real messages stay far below (100,000 partitions);
# who serves strangers sets a lower bound.
MAX_ELEMENTS = 2_000_000

cdef int64_t ELEMENT_BUDGET = MAX_ELEMENTS
cdef object UUID_TYPE = _uuid.UUID
cdef object UUID_UNKNOWN_SAFETY = _uuid.SafeUUID.unknown
cdef object ZERO_UUID = _uuid.UUID(int=0)
cdef object object_new = object.__new__

KINDS = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "uint16": UINT16, "int32": INT32, "int64": INT64, "float64": FLOAT64,
    "uuid": UUID, "string": STRING, "bytes": BYTES, "records": RECORDS, "struct": STRUCT,
}


cdef struct Reader:
    const uint8_t *data
    int64_t size
    int64_t position
    int64_t max_elements
    int64_t elements_left
    PyObject *source            # borrowed: what `data` points into


cdef struct Writer:
    PyObject *buffer            # owned bytes object, not yet seen by anyone else
    uint8_t *data
    int64_t size
    int64_t capacity


# ---------------------------------------------------------------------------------------------- native helpers

cdef int64_t read_unsigned_varint(const char *data, int64_t size_bytes, int64_t position, uint32_t *out) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while position < size_bytes and shift < 35:
        byte = <uint8_t>data[position]
        position += 1
        value |= <uint64_t>(byte & 0x7f) << shift
        if byte < 0x80:
            if value > <uint64_t>INT32_MAX:
                return -1
            out[0] = <uint32_t>value
            return position
        shift += 7
    return -1


cdef int64_t skip_tagged_section(const char *data, int64_t size_bytes, int64_t position) noexcept nogil:
    cdef uint32_t count, tag, length
    if position < 0:
        return -1
    position = read_unsigned_varint(data, size_bytes, position, &count)
    if position < 0 or <int64_t>count * 2 > size_bytes - position:
        return -1
    while count > 0:
        position = read_unsigned_varint(data, size_bytes, position, &tag)
        if position >= 0:
            position = read_unsigned_varint(data, size_bytes, position, &length)
        if position < 0 or <int64_t>length > size_bytes - position:
            return -1
        position += length
        count -= 1
    return position


# Straight-line code, which compilers turn into one load or store and a byte swap; a loop they do not.

cdef inline uint64_t load_16(const uint8_t *at) noexcept nogil:
    return <uint64_t>at[0] << 8 | at[1]


cdef inline uint64_t load_32(const uint8_t *at) noexcept nogil:
    return <uint64_t>at[0] << 24 | <uint64_t>at[1] << 16 | <uint64_t>at[2] << 8 | at[3]


cdef inline uint64_t load_64(const uint8_t *at) noexcept nogil:
    return load_32(at) << 32 | load_32(at + 4)


cdef inline void store_16(uint8_t *at, uint64_t value) noexcept nogil:
    at[0], at[1] = <uint8_t>(value >> 8), <uint8_t>value


cdef inline void store_32(uint8_t *at, uint64_t value) noexcept nogil:
    at[0], at[1] = <uint8_t>(value >> 24), <uint8_t>(value >> 16)
    at[2], at[3] = <uint8_t>(value >> 8), <uint8_t>value


cdef inline void store_64(uint8_t *at, uint64_t value) noexcept nogil:
    store_32(at, value >> 32)
    store_32(at + 4, value)


# ---------------------------------------------------------------------------------------------- plans

cdef int64_t least_bytes(uint8_t kind, bint compact, Plan child) except -1:
    """Least size on the wire of one value that is not null."""
    if kind == BOOL or kind == INT8:
        return 1
    if kind == INT16 or kind == UINT16:
        return 2
    if kind == INT32:
        return 4
    if kind == INT64 or kind == FLOAT64:
        return 8
    if kind == UUID:
        return 16
    if kind == STRUCT:
        return child.min_bytes
    if compact:
        return 1
    return 2 if kind == STRING else 4


cdef bint has_mutable_default(Field *f) noexcept:
    if <object>f.default is None:
        return False
    return f.is_array or f.kind == STRUCT


cdef class Plan:
    """How one struct looks in one version.

    Args:
        name: the struct's name, for error texts.
        flexible: ends with a tagged section.
        fields: in wire order, tagged ones last and ascending; also those this version lacks. Each is a tuple
            (name, kind, is_array, nullable, compact, present, ignorable, tag or -1, default, child plan or None).

    Threads: immutable once made.
    """

    def __cinit__(self, str name not None, bint flexible, list fields not None):
        cdef Py_ssize_t i
        cdef Field *f
        cdef Plan child
        self.name, self.flexible = name, flexible
        self.template, self.owned = {}, []
        self.fields = <Field *>calloc(max(1, len(fields)), sizeof(Field))
        if self.fields is NULL:
            raise MemoryError
        self.min_bytes = 1 if flexible else 0
        for i in range(len(fields)):
            f = &self.fields[i]
            field_name, kind, is_array, nullable, compact, present, ignorable, tag, default, child = fields[i]
            f.kind, f.is_array, f.nullable, f.compact = KINDS[kind], is_array, nullable, compact
            f.present, f.ignorable, f.tag = present, ignorable, tag
            if (f.kind == STRUCT) != (child is not None):
                raise ValueError(f"{name}.{field_name}: a struct, and only a struct, has a child plan")
            if default is not None and (f.is_array or f.kind == STRUCT):
                default = [] if f.is_array else fresh_struct(child)
            self.owned.append((field_name, default, child))
            f.name, f.default = <PyObject *>field_name, <PyObject *>default
            if child is not None:
                f.child = <PyObject *>child
            self.count = i + 1
            self.template[field_name] = default
            f.element_bytes = max(1, least_bytes(f.kind, compact, child))
            if not present:
                if self.tagged_count:       # the writers find the tagged ones by their place at the end
                    raise ValueError(f"{name}.{field_name}: tagged fields come last")
                continue
            if f.tag >= 0:
                self.tagged_count += 1
                continue
            if self.tagged_count:
                raise ValueError(f"{name}.{field_name}: tagged fields come last")
            if f.is_array:
                self.min_bytes += 1 if compact else 4
            elif f.kind == STRUCT and nullable:
                self.min_bytes += 1
            else:
                self.min_bytes += least_bytes(f.kind, compact, child)
            encoded = encode_default(f)
            self.owned.append(encoded)
            f.encoded_default = <PyObject *>encoded
        if self.tagged_count > 127 or (self.tagged_count and not flexible):
            raise ValueError(f"{name}: tagged fields need a flexible version, and at most 127 fit")

    def __dealloc__(self):
        free(self.fields)

    def default(self):
        """Return a new dict with every field at its default."""
        return fresh_struct(self)

    def __repr__(self):
        return f"<Plan {self.name}, {self.count} fields>"


cdef object fresh_default(Field *f):
    if f.is_array:
        return []
    return fresh_struct(<Plan>f.child)


cdef dict fresh_struct(Plan plan):
    cdef Py_ssize_t i
    cdef dict out = PyDict_Copy(plan.template)
    for i in range(plan.count):
        if has_mutable_default(&plan.fields[i]):
            PyDict_SetItem(out, <object>plan.fields[i].name, fresh_default(&plan.fields[i]))
    return out


cdef bytes encode_default(Field *f):
    """Bytes of a missing key; empty when null is its default and this version forbids null (the writer objects)."""
    cdef Writer w
    if <object>f.default is None and not f.nullable:
        return b""
    start_writer(&w, 32)
    try:
        write_field(&w, f, <object>f.default)
        return finish_writer(&w)
    except BaseException:
        Py_XDECREF(w.buffer)
        raise


# ---------------------------------------------------------------------------------------------- decoding

cdef int refuse(Reader *r, Field *f, str why) except -1:
    raise ProtocolError(f"{<object>f.name}: {why} at byte {r.position} of {r.size}")


cdef inline int need(Reader *r, Field *f, int64_t size) except -1:
    if size > r.size - r.position:
        refuse(r, f, f"{size} bytes needed, {r.size - r.position} left")
    return 0


cdef inline int read_varint(Reader *r, Field *f, int64_t *out) except -1:
    cdef uint32_t value = 0
    cdef int64_t end
    if r.position < r.size and r.data[r.position] < 0x80:
        out[0] = r.data[r.position]
        r.position += 1
        return 0
    end = read_unsigned_varint(<const char *>r.data, r.size, r.position, &value)
    if end < 0:
        if f is NULL:
            raise ProtocolError(f"tagged section: invalid varint at byte {r.position} of {r.size}")
        refuse(r, f, "invalid varint")
    r.position = end
    out[0] = value
    return 0


cdef inline int read_length(Reader *r, Field *f, int prefix_bytes, int64_t *out) except -1:
    """Length or count, -1 for null; a null is the caller's to judge."""
    if f.compact:
        read_varint(r, f, out)
        out[0] -= 1
        return 0
    need(r, f, prefix_bytes)
    if prefix_bytes == 2:
        out[0] = <int16_t>load_16(r.data + r.position)
    else:
        out[0] = <int32_t>load_32(r.data + r.position)
    r.position += prefix_bytes
    if out[0] < 0:  # Kafka reads every negative length as null
        out[0] = -1
    return 0


cdef object read_uuid(const uint8_t *at):
    cdef uint64_t high = load_64(at), low = load_64(at + 8)
    if high == 0 and low == 0:
        return ZERO_UUID
    number = (<object>high << 64) | low
    out = object_new(UUID_TYPE)  # the constructor costs ten times as much
    PyObject_GenericSetAttr(out, "int", number)
    PyObject_GenericSetAttr(out, "is_safe", UUID_UNKNOWN_SAFETY)
    return out


cdef object read_variable(Reader *r, Field *f, bint nullable):
    cdef int64_t length = 0
    read_length(r, f, 2 if f.kind == STRING else 4, &length)
    if length < 0:
        if not nullable:
            refuse(r, f, "null is not allowed")
        return None
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


cdef object read_value(Reader *r, Field *f, bint nullable):
    """One value: a field's, or one element of its array."""
    cdef uint8_t kind = f.kind
    cdef const uint8_t *at = r.data + r.position
    cdef uint64_t bits
    cdef double number
    if kind == INT32:
        need(r, f, 4)
        r.position += 4
        return <int32_t>load_32(at)
    if kind == STRING:
        return read_variable(r, f, nullable)
    if kind == STRUCT:
        if nullable:
            need(r, f, 1)
            r.position += 1
            if <int8_t>at[0] < 0:
                return None
        return read_struct(r, <Plan>f.child)
    if kind == INT16:
        need(r, f, 2)
        r.position += 2
        return <int16_t>load_16(at)
    if kind == INT64:
        need(r, f, 8)
        r.position += 8
        return <int64_t>load_64(at)
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
        return <uint16_t>load_16(at)
    if kind == FLOAT64:
        need(r, f, 8)
        r.position += 8
        bits = load_64(at)
        memcpy(&number, &bits, 8)
        return number
    return read_variable(r, f, nullable)


cdef object read_array(Reader *r, Field *f):
    cdef int64_t count = 0, i
    cdef object item
    cdef list out
    read_length(r, f, 4, &count)
    if count < 0:
        if not f.nullable:
            refuse(r, f, "null is not allowed")
        return None
    # Before any list is made: the least the elements take must be there.
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


cdef int read_tagged(Reader *r, Plan plan, dict out) except -1:
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
        if f is NULL:  # from a newer version: skipped by its size, in any order, as often as it comes
            r.position = end
            continue
        whole, r.size = r.size, end  # the value may not leave its field
        try:
            PyDict_SetItem(out, <object>f.name, read_array(r, f) if f.is_array else read_value(r, f, f.nullable))
        finally:
            r.size = whole
        if r.position != end:
            refuse(r, f, f"tagged field of {length} bytes ends {end - r.position} bytes early")
    return 0


cdef dict read_struct(Reader *r, Plan plan):
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


def decode_from(Plan plan not None, data, Py_ssize_t offset=0):
    """Decode one struct out of `data`; return it and the position after it.

    Args:
        plan: what to expect.
        data: any contiguous buffer; memoryviews of `records` fields keep it alive.
        offset: first byte of the struct.

    Returns: (dict with every field of the table, absent ones at their default; position of the byte after it).

    Raises: ProtocolError: the bytes are no such struct. ValueError: `offset` is outside `data`.
    """
    cdef Py_buffer buffer
    cdef Reader r
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if offset < 0 or offset > buffer.len:
            raise ValueError(f"offset {offset} is outside the {buffer.len} bytes of data")
        r.data, r.size, r.position = <const uint8_t *>buffer.buf, buffer.len, offset
        r.max_elements = r.elements_left = ELEMENT_BUDGET
        r.source = <PyObject *>data
        out = read_struct(&r, plan)
        return out, r.position
    finally:
        PyBuffer_Release(&buffer)


def decode(Plan plan not None, data, Py_ssize_t offset=0, int64_t max_elements=ELEMENT_BUDGET):
    """As decode_from, without the position: bytes after the struct are ignored, as Kafka does.

    Args:
        max_elements: bound of all its arrays' elements together.
    """
    cdef Py_buffer buffer
    cdef Reader r
    if max_elements < 0:
        raise ValueError(f"max_elements must be >= 0, got {max_elements}")
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if offset < 0 or offset > buffer.len:
            raise ValueError(f"offset {offset} is outside the {buffer.len} bytes of data")
        r.data, r.size, r.position = <const uint8_t *>buffer.buf, buffer.len, offset
        r.max_elements = r.elements_left = max_elements
        r.source = <PyObject *>data
        return read_struct(&r, plan)
    finally:
        PyBuffer_Release(&buffer)


def skip_tags(data, Py_ssize_t offset=0):
    """Return the position after the tagged section at `offset`, taking no memory for its fields.

    Raises: ProtocolError: it is cut or malformed.
    """
    cdef const uint8_t[::1] view = data
    if offset < 0 or offset > view.shape[0]:
        raise ValueError(f"offset {offset} is outside the {view.shape[0]} bytes of data")
    cdef int64_t end = -1
    if view.shape[0] > 0:
        end = skip_tagged_section(<const char *>&view[0], view.shape[0], offset)
    if end < 0:
        raise ProtocolError(f"malformed tagged section at byte {offset}")
    return end


# ---------------------------------------------------------------------------------------------- encoding

cdef int start_writer(Writer *w, int64_t capacity) except -1:
    cdef bytes buffer = PyBytes_FromStringAndSize(NULL, capacity)
    Py_INCREF(buffer)
    w.buffer, w.data = <PyObject *>buffer, <uint8_t *>PyBytes_AS_STRING(buffer)
    w.size, w.capacity = 0, capacity
    return 0


cdef bytes finish_writer(Writer *w):
    if w.size != w.capacity:
        _PyBytes_Resize(&w.buffer, w.size)
    out = <bytes>w.buffer
    Py_XDECREF(w.buffer)
    w.buffer = NULL
    return out


cdef int grow(Writer *w, int64_t size) except -1:
    cdef int64_t capacity = w.capacity * 2
    if capacity < w.size + size:
        capacity = w.size + size + 64
    if capacity > INT32_MAX:
        raise ProtocolError("message above 2 GiB")
    _PyBytes_Resize(&w.buffer, capacity)
    w.data, w.capacity = <uint8_t *>PyBytes_AS_STRING(<bytes>w.buffer), capacity
    return 0


cdef inline uint8_t *room(Writer *w, int64_t size) except NULL:
    """Place for `size` more bytes, already counted as written."""
    cdef uint8_t *at
    if size > w.capacity - w.size:
        grow(w, size)
    at = w.data + w.size
    w.size += size
    return at


cdef inline int varint_bytes(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline void put_varint(uint8_t *at, uint64_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <uint8_t>(value | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value


cdef inline int write_varint(Writer *w, uint64_t value) except -1:
    put_varint(room(w, varint_bytes(value)), value)
    return 0


cdef int write_length(Writer *w, Field *f, int64_t length, int prefix_bytes) except -1:
    if length > (INT32_MAX - 1 if f.compact or prefix_bytes == 4 else 32767):
        raise ProtocolError(f"{<object>f.name}: length {length} is too large")
    if f.compact:
        return write_varint(w, length + 1)
    if prefix_bytes == 2:
        store_16(room(w, 2), <uint64_t>length)
    else:
        store_32(room(w, 4), <uint64_t>length)
    return 0


cdef int wrong_type(Field *f, object value, str expected) except -1:
    raise ProtocolError(f"{<object>f.name}: expected {expected}, got {type(value).__name__}")


cdef int64_t integer(Field *f, object value, int64_t low, int64_t high) except? -1:
    cdef int64_t number
    if not PyLong_Check(value):  # else a float would lose its fraction in silence
        try:
            value = PyNumber_Index(value)
        except TypeError:
            wrong_type(f, value, "int")
    try:
        number = value
    except OverflowError:
        number, low, high = 0, 1, 0
    if number < low or number > high:
        raise ProtocolError(f"{<object>f.name}: {value!r} does not fit")
    return number


cdef int write_integer(Writer *w, Field *f, object value, int size, int64_t low, int64_t high) except -1:
    cdef int64_t number = integer(f, value, low, high)
    cdef uint8_t *at = room(w, size)
    if size == 4:
        store_32(at, <uint64_t>number)
    elif size == 8:
        store_64(at, <uint64_t>number)
    elif size == 2:
        store_16(at, <uint64_t>number)
    else:
        at[0] = <uint8_t>number
    return 0


cdef int write_uuid(Writer *w, Field *f, object value) except -1:
    cdef uint8_t *at
    cdef object number
    if value is ZERO_UUID:
        memset(room(w, 16), 0, 16)
        return 0
    if PyBytes_CheckExact(value) and PyBytes_GET_SIZE(value) == 16:
        memcpy(room(w, 16), PyBytes_AS_STRING(value), 16)
        return 0
    if not isinstance(value, UUID_TYPE):
        wrong_type(f, value, "uuid.UUID or 16 bytes")
    number = value.int
    at = room(w, 16)
    store_64(at, <uint64_t>(number >> 64))
    store_64(at + 8, <uint64_t>(number & 0xffffffffffffffff))
    return 0


cdef int write_string(Writer *w, Field *f, object value) except -1:
    cdef Py_ssize_t size = 0
    cdef const char *text
    cdef bytes escaped
    if not isinstance(value, str):
        wrong_type(f, value, "str")
    try:
        text = PyUnicode_AsUTF8AndSize(value, &size)
    except UnicodeEncodeError:  # came from bytes that were no UTF-8: those bytes go back
        try:
            escaped = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as e:
            raise ProtocolError(f"{<object>f.name}: {e}") from None
        text, size = PyBytes_AS_STRING(escaped), PyBytes_GET_SIZE(escaped)
    write_length(w, f, size, 2)
    memcpy(room(w, size), text, size)
    return 0


cdef int write_bytes(Writer *w, Field *f, object value) except -1:
    cdef Py_buffer buffer
    if PyBytes_CheckExact(value):
        write_length(w, f, PyBytes_GET_SIZE(value), 4)
        memcpy(room(w, PyBytes_GET_SIZE(value)), PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        return 0
    try:
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
    except TypeError:
        wrong_type(f, value, "bytes")
    try:
        write_length(w, f, buffer.len, 4)
        memcpy(room(w, buffer.len), buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)
    return 0


cdef int write_null(Writer *w, Field *f, bint nullable) except -1:
    if not nullable:
        raise ProtocolError(f"{<object>f.name}: None is not allowed in this version")
    if f.kind == STRUCT and not f.is_array:
        room(w, 1)[0] = 0xff
    elif f.compact:
        room(w, 1)[0] = 0
    elif f.kind == STRING and not f.is_array:
        memset(room(w, 2), 0xff, 2)
    elif f.is_array or f.kind == BYTES or f.kind == RECORDS:
        memset(room(w, 4), 0xff, 4)
    else:
        raise ProtocolError(f"{<object>f.name}: None is not allowed in this version")
    return 0


cdef int write_value(Writer *w, Field *f, object value, bint nullable) except -1:
    cdef uint8_t kind = f.kind
    cdef double number = 0
    cdef uint64_t bits
    if kind == INT32:
        return write_integer(w, f, value, 4, -0x80000000LL, 0x7fffffff)
    if value is None:
        return write_null(w, f, nullable and not f.is_array)
    if kind == STRING:
        return write_string(w, f, value)
    if kind == STRUCT:
        if nullable and not f.is_array:
            room(w, 1)[0] = 1
        return write_struct(w, <Plan>f.child, value)
    if kind == INT16:
        return write_integer(w, f, value, 2, -0x8000, 0x7fff)
    if kind == INT64:
        return write_integer(w, f, value, 8, INT64_MIN, INT64_MAX)
    if kind == INT8:
        return write_integer(w, f, value, 1, -0x80, 0x7f)
    if kind == BOOL:
        return write_integer(w, f, value, 1, 0, 1)
    if kind == UUID:
        return write_uuid(w, f, value)
    if kind == UINT16:
        return write_integer(w, f, value, 2, 0, 0xffff)
    if kind == FLOAT64:
        try:
            number = PyFloat_AsDouble(value)
        except (TypeError, OverflowError):
            wrong_type(f, value, "float")
        memcpy(&bits, &number, 8)
        store_64(room(w, 8), bits)
        return 0
    return write_bytes(w, f, value)


cdef int write_field(Writer *w, Field *f, object value) except -1:
    cdef Py_ssize_t i
    if not f.is_array:
        return write_value(w, f, value, f.nullable)
    if value is None:
        return write_null(w, f, f.nullable)
    if not isinstance(value, list):
        if not isinstance(value, tuple):
            wrong_type(f, value, "list")
        value = list(value)
    write_length(w, f, PyList_GET_SIZE(value), 4)
    for i in range(PyList_GET_SIZE(value)):
        if i >= PyList_GET_SIZE(value):
            raise ProtocolError(f"{<object>f.name}: the list changed while it was encoded")
        write_value(w, f, (<list>value)[i], False)
    return 0


cdef bint is_default(Field *f, object value) except -1:
    cdef object default = <object>f.default
    if value is default:
        return True
    if value is None or default is None:
        return False
    if f.is_array:
        return isinstance(value, (list, tuple)) and not value
    if f.kind == STRUCT:
        return struct_is_default(<Plan>f.child, value)
    if f.kind == UUID:
        return (value.int == 0) if isinstance(value, UUID_TYPE) else value == bytes(16)
    return value == default


cdef bint struct_is_default(Plan plan, object body) except -1:
    cdef Py_ssize_t i
    cdef PyObject *value
    cdef Py_ssize_t hits = 0
    if not isinstance(body, dict):
        raise ProtocolError(f"{plan.name}: expected dict, got {type(body).__name__}")
    for i in range(plan.count):
        value = PyDict_GetItemWithError(body, <object>plan.fields[i].name)
        if value is not NULL:
            hits += 1
            if not is_default(&plan.fields[i], <object>value):
                return False
    if hits != len(<dict>body):
        unknown_key(plan, body)
    return True


cdef int unknown_key(Plan plan, dict body) except -1:
    names = sorted(str(name) for name in body if name not in plan.template)
    raise ProtocolError(f"{plan.name} has no field {', '.join(names)}")


cdef int write_tagged(Writer *w, Plan plan, dict body, Py_ssize_t *hits) except -1:
    cdef Py_ssize_t i
    cdef int64_t count_at, value_at, length
    cdef int prefix
    cdef PyObject *value
    cdef Field *f
    count_at = w.size
    room(w, 1)[0] = 0
    for i in range(plan.count - plan.tagged_count, plan.count):
        f = &plan.fields[i]
        value = PyDict_GetItemWithError(body, <object>f.name)
        if value is NULL:
            continue
        hits[0] += 1
        if is_default(f, <object>value):
            continue
        write_varint(w, f.tag)
        value_at = w.size
        write_field(w, f, <object>value)
        length = w.size - value_at
        prefix = varint_bytes(length)
        room(w, prefix)
        memmove(w.data + value_at + prefix, w.data + value_at, length)
        put_varint(w.data + value_at, length)
        w.data[count_at] += 1
    return 0


cdef int write_struct(Writer *w, Plan plan, object body) except -1:
    cdef Py_ssize_t i, hits = 0, size
    cdef PyObject *value
    cdef Field *f
    if not isinstance(body, dict):
        raise ProtocolError(f"{plan.name}: expected dict, got {type(body).__name__}")
    for i in range(plan.count - plan.tagged_count):
        f = &plan.fields[i]
        value = PyDict_GetItemWithError(body, <object>f.name)
        if value is not NULL:
            hits += 1
            if f.present:
                write_field(w, f, <object>value)
            elif not f.ignorable and not is_default(f, <object>value):
                raise ProtocolError(f"{plan.name}.{<object>f.name} does not exist in this version")
        elif f.present:
            size = PyBytes_GET_SIZE(<object>f.encoded_default)
            if size == 0:
                raise ProtocolError(f"{plan.name}.{<object>f.name} is missing, and None is not allowed in this version")
            memcpy(room(w, size), PyBytes_AS_STRING(<object>f.encoded_default), size)
    if plan.flexible:
        write_tagged(w, plan, body, &hits)
    if hits != len(<dict>body):
        unknown_key(plan, body)
    return 0


def encode(Plan plan not None, dict body not None, bytes prefix not None=b"", bint framed=False):
    """Encode `body`, after `prefix`, in one buffer.

    Args:
        plan: the table.
        body: field name to value; missing keys take their default.
        prefix: bytes to put before it (a header).
        framed: put the int32 size of everything in front, as on a connection.

    Raises: ProtocolError: an unknown key, a value that does not fit, or one that this version cannot carry.
    """
    cdef Writer w
    cdef Py_ssize_t prefix_bytes = PyBytes_GET_SIZE(prefix)
    start_writer(&w, 256 + prefix_bytes)
    try:
        if framed:
            room(&w, 4)
        if prefix_bytes:
            memcpy(room(&w, prefix_bytes), PyBytes_AS_STRING(prefix), prefix_bytes)
        write_struct(&w, plan, body)
        if framed:
            store_32(w.data, <uint64_t>(w.size - 4))
        return finish_writer(&w)
    except BaseException:
        Py_XDECREF(w.buffer)
        raise
