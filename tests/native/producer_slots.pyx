"""Slots of producers in the table of a partition, for tests."""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from kbroker.log.producers._producer_state cimport producer_state_free, producer_state_new
from kbroker.log.producers._producer_table cimport Entry, ProducerState, find_slot


def producer_slots(ids, int64_t capacity):
    """Return the slot of each producer id in an empty table with capacity slots."""
    cdef ProducerState *state = producer_state_new()
    cdef Entry **slots = <Entry **>calloc(<size_t>capacity, sizeof(Entry *))
    if state is NULL or slots is NULL:
        raise MemoryError
    try:
        return [find_slot(state, slots, capacity, producer_id) for producer_id in ids]
    finally:
        free(slots)
        producer_state_free(state)
