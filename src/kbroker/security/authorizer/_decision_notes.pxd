"""Decisions for the log: distinct ones since the last call, each with its count; beyond a limit they are only counted.

Locks: ``DecisionNotes.lock``, a leaf, guards all fields.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from kbroker._core.sync cimport Mutex
from kbroker.common._text cimport Text

cdef enum:
    KEPT_NOTES = 64             # maximum of distinct decisions; others are only counted
    NOTED_TEXT_BYTES = 256      # longer texts in the log are cut
    NOTED_HOST_BYTES = 64

cdef struct DecisionNote:       # decisions that are equal in all logged fields
    uint64_t hash
    int64_t times
    int32_t references          # number of objects (such as partitions) in the first decision
    int16_t api_key
    int16_t kind
    int16_t operation
    int16_t is_cut              # a text was longer and is cut
    int32_t name_bytes
    char host[NOTED_HOST_BYTES]
    char principal[NOTED_TEXT_BYTES]
    char name[NOTED_TEXT_BYTES]

cdef struct DecisionNotes:
    Mutex lock
    uint64_t seed               # secret, set by ``notes_init``
    int32_t count
    int64_t left_out
    DecisionNote notes[KEPT_NOTES]

cdef void notes_init(DecisionNotes *notes, uint64_t seed) noexcept nogil        # notes must be zeroed
cdef void notes_destroy(DecisionNotes *notes) noexcept nogil
cdef void note_decision(DecisionNotes *notes, Text principal, Text host, int16_t api_key, int operation, int kind,
                        Text name, int32_t references) noexcept nogil
# Return a list of ``DecisionNote`` and the number of further ones; clear both
cdef tuple taken_notes(DecisionNotes *notes)
