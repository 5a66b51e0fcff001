"""Encoder of Kafka messages, and Plan, the table that encoder and decoder walk.

Wire grammar: KIP-482 and ``clients/src/main/resources/common/message``.

Tables are used instead of generated code because one interpreter serves every message in 100 KiB, and encodes faster
than one C function per message version does: its working set stays in the cache. Plan and encoder share a module
because a plan holds the encoded defaults of its fields.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Copy, PyDict_SetItem
from cpython.float cimport PyFloat_AsDouble
from cpython.list cimport PyList_GET_SIZE
from cpython.long cimport PyLong_Check
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int64_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset, strcmp
from kbroker._core.codec.bytes cimport put_uvarint, store_16, store_32, store_64, uvarint_bytes
from kbroker.protocol._field cimport (
    BOOL, BYTES, FLOAT64, INT16, INT32, INT64, INT8, RECORDS, STRING, STRUCT, UINT16, UUID, Field, has_mutable_default,
)

import uuid as _uuid

from kbroker.common.errors import ProtocolError


cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **target, Py_ssize_t size) except -1
    PyObject *PyDict_GetItemWithError(object mapping, object key) except? NULL
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef object UUID_TYPE = _uuid.UUID
cdef object ZERO_UUID = _uuid.UUID(int=0)

KINDS = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "uint16": UINT16, "int32": INT32, "int64": INT64, "float64": FLOAT64,
    "uuid": UUID, "string": STRING, "bytes": BYTES, "records": RECORDS, "struct": STRUCT,
}


# ---------------------------------------------------------------------------------------------- buffer

cdef struct Writer:             # one owner at a time
    PyObject *buffer            # owned bytes object, not visible elsewhere yet
    uint8_t *data
    int64_t size
    int64_t capacity
    int64_t longest_string      # limit in bytes


cdef int start_writer(Writer *w, int64_t capacity) except -1:
    cdef bytes buffer = PyBytes_FromStringAndSize(NULL, capacity)
    Py_INCREF(buffer)
    w.buffer, w.data = <PyObject *>buffer, <uint8_t *>PyBytes_AS_STRING(buffer)
    w.size, w.capacity = 0, capacity
    w.longest_string = INT32_MAX
    return 0


cdef bytes finish_writer(Writer *w):
    """Return the written bytes and take over the buffer."""
    if w.size != w.capacity:
        _PyBytes_Resize(&w.buffer, w.size)
    out = <bytes>w.buffer
    Py_XDECREF(w.buffer)
    w.buffer = NULL
    return out


cdef int grow(Writer *w, int64_t size) except -1:
    cdef int64_t needed = w.size + size
    cdef int64_t capacity = min(max(w.capacity * 2, needed + 64), <int64_t>INT32_MAX)
    if needed > INT32_MAX:
        raise ProtocolError(f"a message has {INT32_MAX} bytes at most, and this one needs {needed}")
    _PyBytes_Resize(&w.buffer, capacity)
    w.data, w.capacity = <uint8_t *>PyBytes_AS_STRING(<bytes>w.buffer), capacity
    return 0


cdef inline uint8_t *reserve(Writer *w, int64_t size) except NULL:
    """Reserve `size` more bytes, already counted as written."""
    cdef uint8_t *at
    if size > w.capacity - w.size:
        grow(w, size)
    at = w.data + w.size
    w.size += size
    return at


cdef inline int write_varint(Writer *w, uint64_t value) except -1:
    put_uvarint(reserve(w, uvarint_bytes(value)), value)
    return 0


# ---------------------------------------------------------------------------------------------- plans

cdef int64_t least_bytes(uint8_t kind, bint compact, Plan child) except -1:
    """Return the minimum size on the wire of one value that is not null."""
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


cdef class Plan:
    """Layout of one struct in one version.

    Args:
        name: the struct's name, for error messages.
        flexible: ends with a tagged section.
        fields: in wire order, tagged ones last and ascending, fields that this version lacks included. Each is a tuple
            (name, kind, is_array, nullable, compact, present, ignorable, tag or -1, default, child plan or None).

    Threads: immutable once built.
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
            if present and f.tag >= 0:
                self.tagged_count += 1
                continue
            if self.tagged_count:           # the writers find the tagged fields by their position at the end
                raise ValueError(f"{name}.{field_name}: tagged fields come last")
            if not present:
                continue
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
    """Return the bytes of a missing key.

    Empty when the default is null and this version forbids null (the writer then raises).
    """
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


# ---------------------------------------------------------------------------------------------- encoding

cdef int write_length(Writer *w, Field *f, int64_t length, int prefix_bytes) except -1:
    if length > (INT32_MAX - 1 if f.compact or prefix_bytes == 4 else 32767):
        raise ProtocolError(f"{<object>f.name}: length {length} is too large")
    if f.compact:
        return write_varint(w, length + 1)
    if prefix_bytes == 2:
        store_16(reserve(w, 2), <uint64_t>length)
    else:
        store_32(reserve(w, 4), <uint64_t>length)
    return 0


cdef int wrong_type(Field *f, object value, str expected) except -1:
    raise ProtocolError(f"{<object>f.name}: expected {expected}, got {type(value).__name__}")


cdef int out_of_range(Field *f, object value, int64_t low, int64_t high) except -1:
    raise ProtocolError(f"{<object>f.name}: expected an integer from {low} to {high}, got {value!r}")


cdef int64_t integer(Field *f, object value, int64_t low, int64_t high) except? -1:
    cdef int64_t number
    if not PyLong_Check(value):  # otherwise a float would lose its fraction silently
        try:
            value = PyNumber_Index(value)
        except TypeError:
            wrong_type(f, value, "int")
    try:
        number = value
    except OverflowError:
        out_of_range(f, value, low, high)
    if number < low or number > high:
        out_of_range(f, value, low, high)
    return number


cdef int write_integer(Writer *w, Field *f, object value, int size, int64_t low, int64_t high) except -1:
    cdef int64_t number = integer(f, value, low, high)
    cdef uint8_t *at = reserve(w, size)
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
        memset(reserve(w, 16), 0, 16)
        return 0
    if PyBytes_CheckExact(value) and PyBytes_GET_SIZE(value) == 16:
        memcpy(reserve(w, 16), PyBytes_AS_STRING(value), 16)
        return 0
    if not isinstance(value, UUID_TYPE):
        wrong_type(f, value, "uuid.UUID or 16 bytes")
    number = value.int
    at = reserve(w, 16)
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
    except UnicodeEncodeError:  # decoded from bytes that were not UTF-8: encode the original bytes
        try:
            escaped = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as e:
            raise ProtocolError(f"{<object>f.name}: {e}") from None
        text, size = PyBytes_AS_STRING(escaped), PyBytes_GET_SIZE(escaped)
    if size > w.longest_string:
        if <object>f.name != "ErrorMessage":
            raise ProtocolError(f"{<object>f.name}: a string of {size} bytes, of at most {w.longest_string}")
        size = w.longest_string
        while size > 0 and (text[size] & 0xc0) == 0x80:  # not within a character
            size -= 1
    write_length(w, f, size, 2)
    memcpy(reserve(w, size), text, size)
    return 0


cdef int write_bytes(Writer *w, Field *f, object value) except -1:
    cdef Py_buffer buffer
    if PyBytes_CheckExact(value):
        write_length(w, f, PyBytes_GET_SIZE(value), 4)
        memcpy(reserve(w, PyBytes_GET_SIZE(value)), PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        return 0
    try:
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
    except (TypeError, BufferError, ValueError):  # the latter two: not contiguous, or a released memoryview
        wrong_type(f, value, "contiguous bytes")
    try:
        write_length(w, f, buffer.len, 4)
        memcpy(reserve(w, buffer.len), buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)
    return 0


cdef int write_null(Writer *w, Field *f, bint nullable) except -1:
    if not nullable:
        raise ProtocolError(f"{<object>f.name}: None is not allowed in this version")
    if f.kind == STRUCT and not f.is_array:
        reserve(w, 1)[0] = 0xff if f.tag < 0 else 0  # in a tagged field Kafka writes a varint: 0 or 1
    elif f.compact:
        reserve(w, 1)[0] = 0
    elif f.kind == STRING and not f.is_array:
        memset(reserve(w, 2), 0xff, 2)
    elif f.is_array or f.kind == BYTES or f.kind == RECORDS:
        memset(reserve(w, 4), 0xff, 4)
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
            reserve(w, 1)[0] = 1
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
        store_64(reserve(w, 8), bits)
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
    reserve(w, 1)[0] = 0
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
        prefix = uvarint_bytes(length)
        reserve(w, prefix)
        memmove(w.data + value_at + prefix, w.data + value_at, length)
        put_uvarint(w.data + value_at, length)
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
            memcpy(reserve(w, size), PyBytes_AS_STRING(<object>f.encoded_default), size)
    if plan.flexible:
        write_tagged(w, plan, body, &hits)
    if hits != len(<dict>body):
        unknown_key(plan, body)
    return 0


def encode(
    Plan plan not None, dict body not None, bytes prefix not None=b"", bint framed=False,
    int64_t longest_string=INT32_MAX
):
    """Encode `body`, after `prefix`, in one buffer.

    Args:
        plan: the table.
        body: field name to value; missing keys have their default.
        prefix: bytes before it (a header).
        framed: write the int32 size of everything first, as on a connection.
        longest_string: maximum size of a string in bytes; where a length has two bytes 32,767 in any case. A longer
            ErrorMessage, which may repeat long names, is cut.

    Raises: ProtocolError: an unknown key, an invalid value, or a value that this version cannot carry.
    """
    cdef Writer w
    cdef Py_ssize_t prefix_bytes = PyBytes_GET_SIZE(prefix)
    start_writer(&w, 256 + prefix_bytes)
    w.longest_string = longest_string
    try:
        if framed:
            reserve(&w, 4)
        if prefix_bytes:
            memcpy(reserve(&w, prefix_bytes), PyBytes_AS_STRING(prefix), prefix_bytes)
        write_struct(&w, plan, body)
        if framed:
            store_32(w.data, <uint64_t>(w.size - 4))
        return finish_writer(&w)
    except BaseException:
        Py_XDECREF(w.buffer)
        raise


# ---------------------------------------------------------------------------------------------- error codes

def error_counts(dict body not None):
    """Return the number of occurrences by error code of a response, at any depth."""
    cdef dict counts = {}
    count_errors(body, counts)
    return counts


cdef int count_errors(dict body, dict counts) except -1:
    for name, value in body.items():
        if isinstance(value, list):
            for row in <list>value:
                if isinstance(row, dict):
                    count_errors(row, counts)
        elif isinstance(value, dict):
            count_errors(value, counts)
        elif name == "ErrorCode" or name == "PartitionErrorCode":       # the latter in AddPartitionsToTxn
            code = int(value)
            counts[code] = counts.get(code, 0) + 1
    return 0


# ---------------- wire tables of ``messages/``, compiled in: ``setup.py`` writes them into a header as marshal's bytes

cdef extern from "message_tables.h" nogil:
    struct MessageTable:
        const char *file
        const unsigned char *bytes
        int size

    const MessageTable *MESSAGE_TABLES
    int MESSAGE_TABLE_COUNT


cdef extern from "marshal.h":
    object PyMarshal_ReadObjectFromString(const char *data, Py_ssize_t size)


def message_table(str file not None):
    """Return the content of ``messages/FILE``, as ``json.load`` would: a new object each time.

    Raises: KeyError: no such table.
    Threads: any.
    """
    cdef bytes name = file.encode()
    cdef int i
    for i in range(MESSAGE_TABLE_COUNT):
        if strcmp(MESSAGE_TABLES[i].file, <const char *>name) == 0:
            return PyMarshal_ReadObjectFromString(<const char *>MESSAGE_TABLES[i].bytes, MESSAGE_TABLES[i].size)
    raise KeyError(file)


def message_files():
    """Return the names of all tables."""
    return [MESSAGE_TABLES[i].file.decode() for i in range(MESSAGE_TABLE_COUNT)]
