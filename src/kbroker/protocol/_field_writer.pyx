# cython: freethreading_compatible=True
"""How the value of one field is written: checked against its kind, length first, null where it may be."""
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_Check
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport INT32_MAX, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

import uuid as _uuid

from kbroker.protocol._field cimport BYTES, RECORDS, STRING, STRUCT, Field
from kbroker.protocol._primitives cimport store_16, store_32, store_64

from kbroker.common.errors import ProtocolError

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **target, Py_ssize_t size) except -1
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef object UUID_TYPE = _uuid.UUID
cdef object ZERO_UUID = _uuid.UUID(int=0)


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


cdef bint uuid_is_zero(object value) except -1:
    return (value.int == 0) if isinstance(value, UUID_TYPE) else value == bytes(16)
