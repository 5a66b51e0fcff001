"""CRC-32C as record batches use it, by the processor's own instruction if it has one."""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t

from kbroker._core.arguments cimport integer

cdef extern from "codec/crc32c.h" nogil:
    void kb_crc32c_setup() noexcept
    uint32_t kb_crc32c(uint32_t crc, const char *data, int64_t size_bytes) noexcept
    uint32_t kb_crc32c_by_table(uint32_t crc, const unsigned char *data, size_t size_bytes) noexcept
    const char *kb_crc32c_back_end() noexcept

cdef enum:
    SMALL_BYTES = 5120      # below this, releasing the GIL costs more than the checksum

kb_crc32c_setup()


cdef uint32_t crc32c(uint32_t crc, const char *data, int64_t size_bytes) noexcept nogil:
    return kb_crc32c(crc, data, size_bytes) if size_bytes > 0 else crc


def _python_crc32c(data, crc=0) -> int:
    """Return the CRC-32C of `data`, continuing from the checksum `crc` of the preceding bytes.

    Args:
        data: any object with a contiguous buffer.
        crc: checksum of the preceding bytes, 0 at the start.

    Raises: TypeError if `data` has no buffer; BufferError if it is not contiguous; ValueError for a `crc` out of range.

    Threads: any; the GIL is released from 5 KiB on, so the caller must not change the buffer meanwhile.
    """
    cdef uint32_t value = <uint32_t>integer(crc, "crc", 0, 0xFFFFFFFF)
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < SMALL_BYTES:
        value = crc32c(value, <const char *>view.buf, view.len)
    else:
        with nogil:
            value = crc32c(value, <const char *>view.buf, view.len)
    PyBuffer_Release(&view)
    return value


# The C function of the same name is not visible from Python, so the name is free in the module's dictionary.
_python_crc32c.__name__ = _python_crc32c.__qualname__ = "crc32c"
globals()["crc32c"] = _python_crc32c
del globals()["_python_crc32c"]


def _crc32c_by_table(data, crc=0) -> int:
    """Return ``crc32c`` computed from the tables only, so that a test can compare both back ends."""
    cdef uint32_t value = <uint32_t>integer(crc, "crc", 0, 0xFFFFFFFF)
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    value = kb_crc32c_by_table(value, <const unsigned char *>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return value


def back_end() -> str:
    """Return the name of the implementation in use: ``sse4.2``, ``armv8`` or ``table``."""
    return (<bytes>kb_crc32c_back_end()).decode("ascii")
