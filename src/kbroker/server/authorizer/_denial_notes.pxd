"""Refused requests for the log: different ones until the next look, each with how often it came; more are only counted.

Locks: ``DenialNotes.lock``, a leaf, guards all of it.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from kbroker._core.sync cimport Mutex
from kbroker.common._text cimport Text

cdef enum:
    KEPT_DENIALS = 64           # different ones since the last look; more are counted only
    DENIAL_TEXT_BYTES = 256     # of a name or principal in the log; what is longer is cut
    DENIAL_HOST_BYTES = 64

cdef struct Denial:             # refused requests that differ in nothing that is logged
    uint64_t hash
    int64_t times
    int32_t references          # partitions and the like, of the first
    int16_t api_key
    int16_t kind
    int16_t operation
    int32_t name_bytes
    char host[DENIAL_HOST_BYTES]
    char principal[DENIAL_TEXT_BYTES]
    char name[DENIAL_TEXT_BYTES]

cdef struct DenialNotes:
    Mutex lock
    uint64_t seed               # secret, set by ``denials_init``
    int32_t count
    int64_t left_out
    Denial denials[KEPT_DENIALS]

cdef void denials_init(DenialNotes *notes, uint64_t seed) noexcept nogil        # of zeros
cdef void denials_destroy(DenialNotes *notes) noexcept nogil
cdef void note_denial(DenialNotes *notes, Text principal, Text host, int16_t api_key, int operation, int kind,
                      Text name, int32_t references) noexcept nogil
cdef tuple taken_denials(DenialNotes *notes)    # a list of ``Denial``, and how many more there were; both start anew
