"""Exponential arrivals and log-normal completion times from SplitMix64, in whole milliseconds."""
from libc.math cimport cos, exp, log, sqrt
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

cdef double PI = 3.141592653589793     # some math.h lack M_PI
cdef double QUARTILE = 0.67449      # standard deviations from the median to the 75th percentile


cdef uint64_t splitmix_next(SplitMix64 *random) noexcept nogil:
    cdef uint64_t z
    random.state += <uint64_t>0x9E3779B97F4A7C15
    z = random.state
    z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EB
    return z ^ (z >> 31)


cdef inline double unit(SplitMix64 *random) noexcept nogil:
    return <double>(splitmix_next(random) >> 11) * (1.0 / 9007199254740992.0)


cdef int32_t whole_ms(double ms) noexcept nogil:
    return 2147483647 if ms >= 2147483647.0 else <int32_t>ms


cdef bint workload_draw(
        Workload *work, int64_t n, double rate, double p50, double p75, int64_t timeout_ms,
        uint64_t seed) noexcept nogil:
    cdef SplitMix64 random
    cdef double mu = log(p50), sigma = (log(p75) - log(p50)) / QUARTILE, due = 0, u1, u2, u3
    cdef int64_t i
    random.state = seed
    work.n = n
    work.to_complete = 0
    work.due_ms = <int32_t *>calloc(n, sizeof(int32_t))
    work.latency_ms = <int32_t *>malloc(n * sizeof(int32_t))
    if work.due_ms is NULL or work.latency_ms is NULL:
        workload_free(work)
        return False
    for i in range(n):
        u1 = unit(&random)
        u2 = unit(&random)
        u3 = unit(&random)
        if rate > 0:
            due += -log(1 - u1) * 1000 / rate
            work.due_ms[i] = whole_ms(due)
        work.latency_ms[i] = whole_ms(exp(mu + sqrt(-2 * log(1 - u2)) * cos(2 * PI * u3) * sigma))
        if work.latency_ms[i] < timeout_ms:
            work.to_complete += 1
    return True


cdef void workload_free(Workload *work) noexcept nogil:
    free(work.due_ms)
    free(work.latency_ms)
    work.due_ms = work.latency_ms = NULL


cdef uint64_t key_seed(uint64_t seed) noexcept nogil:
    return seed ^ <uint64_t>0x6B657973


cdef void draw_key_numbers(SplitMix64 *random, int64_t *numbers, int32_t count, int64_t key_space) noexcept nogil:
    cdef int32_t i
    for i in range(count):
        numbers[i] = <int64_t>((splitmix_next(random) >> 11) % <uint64_t>key_space)


def drawn(int64_t n, double rate, double p50, double p75, int64_t timeout_ms=200, uint64_t seed=1, int64_t show=10):
    """Return the first `show` due times and latencies, and the number of all `n` latencies below the timeout."""
    cdef Workload work
    if n < 1 or p50 <= 0 or p75 <= p50 or rate < 0:
        raise ValueError("n >= 1, 0 < p50 < p75 and rate >= 0 are needed")
    if not workload_draw(&work, n, rate, p50, p75, timeout_ms, seed):
        raise MemoryError
    shown = range(min(show, n))
    result = [work.due_ms[i] for i in shown], [work.latency_ms[i] for i in shown], work.to_complete
    workload_free(&work)
    return result
