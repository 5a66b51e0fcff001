"""Wire tables of ``messages/``, compiled in: ``setup.py`` writes them into a header as marshal's bytes."""
from libc.string cimport strcmp


cdef extern from "message_tables.h" nogil:
    struct MessageTable:
        const char *file
        const unsigned char *bytes
        int size

    const MessageTable *MESSAGE_TABLES
    int MESSAGE_TABLE_COUNT


cdef extern from "marshal.h":
    object PyMarshal_ReadObjectFromString(const char *data, Py_ssize_t size)


def load(str file not None):
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


def files():
    """Return the names of all tables."""
    return [MESSAGE_TABLES[i].file.decode() for i in range(MESSAGE_TABLE_COUNT)]
