# cython: freethreading_compatible=True
"""The growing buffer of an encoder: a bytes object that nobody else has seen yet."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport INT32_MAX, int64_t, uint8_t

from kbroker.common.errors import ProtocolError

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **target, Py_ssize_t size) except -1


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
