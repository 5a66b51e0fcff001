"""Decisions for the log. See _decision_notes.pxd."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from kbroker._core.containers.hashing cimport hash_seeded
from kbroker._core.sync cimport mutex_destroy, mutex_init, mutex_lock, mutex_unlock
from kbroker.common._text cimport Text

from kbroker.security.authorizer.decision_note import DecisionNote as NoteFacts


cdef void notes_init(DecisionNotes *notes, uint64_t seed) noexcept nogil:
    mutex_init(&notes.lock)
    notes.seed = seed


cdef void notes_destroy(DecisionNotes *notes) noexcept nogil:
    mutex_destroy(&notes.lock)


cdef inline int32_t cut(char *to, Text text, int64_t room) noexcept nogil:
    cdef int64_t size = text.size_bytes if text.size_bytes < room else room
    memcpy(to, text.data, <size_t>size)
    return <int32_t>size


cdef void note_decision(DecisionNotes *notes, Text principal, Text host, int16_t api_key, int operation, int kind,
                        Text name, int32_t references) noexcept nogil:
    cdef uint64_t h = hash_seeded(name.data, name.size_bytes, notes.seed ^ <uint64_t>(
        (<int64_t>api_key << 16) | (operation << 8) | kind))
    cdef DecisionNote *note
    cdef int32_t i
    h = hash_seeded(host.data, host.size_bytes, hash_seeded(principal.data, principal.size_bytes, h))
    mutex_lock(&notes.lock)
    for i in range(notes.count):
        if notes.notes[i].hash == h:
            notes.notes[i].times += 1
            mutex_unlock(&notes.lock)
            return
    if notes.count == KEPT_NOTES:
        notes.left_out += 1
    else:
        note = &notes.notes[notes.count]
        notes.count += 1
        memset(note, 0, sizeof(DecisionNote))
        note.hash = h
        note.times = 1
        note.references = references
        note.is_cut = name.size_bytes > NOTED_TEXT_BYTES or principal.size_bytes > NOTED_TEXT_BYTES - 1
        note.api_key = api_key
        note.kind = <int16_t>kind
        note.operation = <int16_t>operation
        note.name_bytes = cut(note.name, name, NOTED_TEXT_BYTES)
        cut(note.principal, principal, NOTED_TEXT_BYTES - 1)
        cut(note.host, host, NOTED_HOST_BYTES - 1)
    mutex_unlock(&notes.lock)


cdef tuple taken_notes(DecisionNotes *notes):
    cdef DecisionNote *kept = <DecisionNote *>malloc(KEPT_NOTES * sizeof(DecisionNote))
    cdef int64_t left_out
    cdef int32_t n, i
    if kept == NULL:
        raise MemoryError
    with nogil:
        mutex_lock(&notes.lock)
        n = notes.count
        memcpy(kept, notes.notes, <size_t>n * sizeof(DecisionNote))
        left_out = notes.left_out
        notes.count = 0
        notes.left_out = 0
        mutex_unlock(&notes.lock)
    try:
        taken = [
            NoteFacts(
                kept[i].principal.decode("utf-8", "replace"), kept[i].host.decode("utf-8", "replace"),
                kept[i].api_key, kept[i].operation, kept[i].kind,
                kept[i].name[:kept[i].name_bytes].decode("utf-8", "replace"), kept[i].references, kept[i].times,
                kept[i].is_cut != 0)
            for i in range(n)
        ]
    finally:
        free(kept)
    return taken, left_out
