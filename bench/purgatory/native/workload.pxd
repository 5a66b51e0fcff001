"""Drawn requests of a run: the same numbers, in the same order, as in the program for Kafka's purgatory."""
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef struct SplitMix64:
    uint64_t state

cdef struct Workload:
    int64_t n
    int32_t *due_ms             # time of the enqueue since the start
    int32_t *latency_ms         # time from the creation to the completion
    int64_t to_complete         # requests with a latency below the timeout

cdef uint64_t splitmix_next(SplitMix64 *random) noexcept nogil
cdef bint workload_draw(
    Workload *work, int64_t n, double rate, double p50, double p75, int64_t timeout_ms, uint64_t seed) noexcept nogil
cdef void workload_free(Workload *work) noexcept nogil
cdef void draw_key_numbers(SplitMix64 *random, int64_t *numbers, int32_t count, int64_t key_space) noexcept nogil
cdef uint64_t key_seed(uint64_t seed) noexcept nogil
