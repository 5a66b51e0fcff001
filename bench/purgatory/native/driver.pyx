"""One run of the study: a generator, a completer, a reaper and a sampler thread, none of which holds the GIL."""
import threading

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, qsort
from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport Clock, borrow_clock, clock_now_ms, clock_now_ns, clock_wait_until
from kbroker._core.process_usage cimport (
    kb_process_cpu_ns, kb_resident_bytes, kb_thread_cpu_ns, kb_thread_waits,
)
from kbroker._core.sync cimport (
    Cond, Mutex, atomic_load, atomic_store, cond_broadcast, cond_destroy, cond_init, mutex_destroy, mutex_init,
    mutex_lock, mutex_unlock,
)
from kbroker._core.thread_setup cimport kb_short_slice
from kbroker._core.timer.timer_core cimport Timer, TimerFigures, timer_close, timer_figures, timer_new, timer_release
from purgatory_study.deadline_queue cimport (
    DeadlineQueue, deadline_queue_add, deadline_queue_close, deadline_queue_destroy, deadline_queue_init,
    deadline_queue_poll, deadline_queue_take_any,
)
from purgatory_study.kbroker_purgatory cimport kbroker_purgatory_init
from purgatory_study.study_request cimport (
    Design, RunState, StudyRequest, prefetch_lines, request_new, requests_destroy, requests_held,
)
from purgatory_study.workload cimport (
    SplitMix64, Workload, draw_key_numbers, key_seed, workload_draw, workload_free,
)

from kbroker._core.process_memory import release_free_memory


cdef enum:
    NS_PER_MS = 1000000
    POLL_MS = 100
    REAPER_TURN_MS = 200
    SAMPLE_MS = 10
    # limits of a run's options
    MOST_REQUESTS = 100000000       # the harness alone takes 16 bytes for each
    MAX_KEYS = 64
    MOST_KEY_SPACE = 1000000
    MOST_PAYLOAD = 1 << 20
    MOST_MS = 1000000000
    MOST_SLOTS = 1000000
    MOST_MEMORY_MB = 1 << 30

WHOLE, OUT_OF_MEMORY, OUT_OF_TIME = "", "memory", "time"


cdef int compare_int32(const void *a, const void *b) noexcept nogil:
    cdef int32_t left = (<int32_t *>a)[0], right = (<int32_t *>b)[0]
    return (left > right) - (left < right)


cdef dict percentiles(int32_t *late_us, int64_t count):
    """Return nearest-rank percentiles in milliseconds, or None if there are no values."""
    cdef dict found = {}
    cdef int64_t at
    if count == 0:
        return None
    qsort(late_us, count, sizeof(int32_t), compare_int32)
    for name, per_mille in (("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)):
        at = max(0, (per_mille * count + 999) // 1000 - 1)
        found[name] = late_us[at] / 1000.0
    found["min"] = late_us[0] / 1000.0
    found["max"] = late_us[count - 1] / 1000.0
    return found


cdef class StudyDesign:
    """Design of another module for ``StudyRun``, written in Cython with driver.pxd."""

    cdef bint set_up(
            self, Design *design, Clock *clock, int64_t keys, int64_t key_space, int64_t purge_interval) noexcept nogil:
        return False


cdef class StudyRun:
    """Run in real time: call ``go`` once, then ``figures``.

    Args:
        design: "wheel" (kbroker's), "bare" (the harness without a purgatory) or a StudyDesign.
        n, rate, p50, p75, timeout_ms, seed: the drawn workload; percentiles in milliseconds, rate in requests per
            second (0 is unlimited).
        size: payload bytes of a request. keys, key_space, fresh_keys: as for Kafka's program.
        purge_interval: of the design. tick_ms, wheel_size: of kbroker's timing wheel.
        memory_mb: resident memory of the process at which the run gives up; 0 is unlimited.
        limit_s: time at which it gives up.
    Raises: TypeError, ValueError for impossible arguments; MemoryError.
    Threads: one, which starts the others.
    """
    cdef RunState state
    cdef Design design
    cdef DeadlineQueue completions
    cdef char apart[64]
    cdef Workload work
    cdef Timer *timer
    cdef Mutex idle_lock                                    # only for the condition, guards no state
    cdef Cond over                                          # `state.stop` was set
    cdef object clock_owner
    cdef bint bare, fresh_keys, ready
    cdef double rate
    cdef int32_t key_count
    cdef int64_t n, key_space, memory_bytes, limit_ns
    cdef uint64_t seed
    cdef int32_t *completion_late_us
    cdef int64_t made, immediate, completed                 # each written by one thread
    cdef int64_t start_ns, enqueue_ns, elapsed_ns, cpu_ns
    cdef int64_t generator_cpu_ns, completer_cpu_ns, reaper_cpu_ns, sampler_cpu_ns, reaper_waits, reaper_turns
    cdef int64_t longest_stall_ns, stalled_ns, rss_start, rss_peak, peak_pending, given_up
    cdef int64_t samples, queued_sum, live_sum, queued_peak, live_peak
    cdef bint no_memory                                     # of the generator
    cdef TimerFigures at_start, at_end

    def __cinit__(
            self, design, n, double rate=0, double p50=20, double p75=60, timeout_ms=200, size=100, keys=3,
            key_space=100, bint fresh_keys=False, purge_interval=1000, uint64_t seed=1, memory_mb=0,
            double limit_s=3600, tick_ms=1, wheel_size=20):
        from kbroker._core.clock import SystemClock
        cdef int32_t slots
        cdef int64_t tick, interval
        cdef bint made_it
        self.clock_owner = SystemClock()
        self.state.clock = borrow_clock(self.clock_owner)
        deadline_queue_init(&self.completions, self.state.clock)
        mutex_init(&self.idle_lock)
        cond_init(&self.over)
        if not isinstance(design, StudyDesign) and design not in ("wheel", "bare"):
            raise ValueError(f"design must be wheel, bare or a StudyDesign, not {design!r}")
        self.n = integer(n, "n", 1, MOST_REQUESTS)
        self.state.timeout_ms = integer(timeout_ms, "timeout_ms", 1, MOST_MS)
        self.state.payload_bytes = integer(size, "size", 0, MOST_PAYLOAD)
        self.key_count = <int32_t>integer(keys, "keys", 1, MAX_KEYS)
        self.key_space = integer(key_space, "key_space", 1, MOST_KEY_SPACE)
        self.memory_bytes = integer(memory_mb, "memory_mb", 0, MOST_MEMORY_MB) << 20
        interval = integer(purge_interval, "purge_interval", 0, INT64_MAX)
        tick = integer(tick_ms, "tick_ms", 1, MOST_MS)
        slots = <int32_t>integer(wheel_size, "wheel_size", 2, MOST_SLOTS)
        if not 0 <= rate <= 1e9:
            raise ValueError(f"rate must be between 0 and 1e9 requests a second, got {rate}")
        if not 0 < p50 < p75 <= MOST_MS:
            raise ValueError(f"0 < p50 < p75 <= {MOST_MS} ms is needed, got {p50} and {p75}")
        if not 0 < limit_s <= MOST_MS:
            raise ValueError(f"limit_s must be above 0 and at most {MOST_MS}, got {limit_s}")
        self.bare, self.fresh_keys, self.rate = design == "bare", fresh_keys, rate
        self.seed, self.limit_ns = seed, <int64_t>(limit_s * 1e9)
        if isinstance(design, StudyDesign):
            made_it = (<StudyDesign>design).set_up(
                &self.design, self.state.clock, self.key_count, self.key_space, interval)
        else:
            self.timer = timer_new(self.state.clock, tick, slots)
            made_it = self.timer is not NULL and kbroker_purgatory_init(
                &self.design, self.timer, self.key_count, interval)
        self.ready = made_it
        if made_it:
            made_it = workload_draw(&self.work, self.n, rate, p50, p75, self.state.timeout_ms, seed)
        self.state.expiry_late_us = <int32_t *>calloc(self.n, sizeof(int32_t))
        self.completion_late_us = <int32_t *>calloc(self.n, sizeof(int32_t))
        self.state.room = self.n
        if not made_it or self.state.expiry_late_us is NULL or self.completion_late_us is NULL:
            raise MemoryError
        atomic_store(&self.state.left, self.work.to_complete if self.bare else self.n)

    def __dealloc__(self):
        if self.ready:
            self.drain()
            self.design.free(&self.design)
        requests_destroy(&self.state)
        deadline_queue_destroy(&self.completions)
        timer_release(self.timer)
        workload_free(&self.work)
        cond_destroy(&self.over)
        mutex_destroy(&self.idle_lock)
        free(self.state.expiry_late_us)
        free(self.completion_late_us)

    cdef void sleep_ms(self, int64_t ms) noexcept nogil:
        """Sleep until the time has passed or the run is over."""
        cdef int64_t until_ns = clock_now_ns(self.state.clock) + ms * NS_PER_MS
        mutex_lock(&self.idle_lock)
        while not atomic_load(&self.state.stop):
            if not clock_wait_until(self.state.clock, &self.over, &self.idle_lock, until_ns):
                break
        mutex_unlock(&self.idle_lock)

    cdef void end(self) noexcept nogil:
        """Signal all threads to end soon."""
        mutex_lock(&self.idle_lock)
        atomic_store(&self.state.stop, 1)
        mutex_unlock(&self.idle_lock)
        cond_broadcast(&self.over)

    cdef void generate(self) noexcept nogil:
        cdef int64_t keys[MAX_KEYS]
        cdef SplitMix64 random
        cdef int64_t i, wait_ms, start_ms = self.start_ns // NS_PER_MS, before_ns = self.start_ns, gap_ns
        cdef int64_t immediate = 0, longest_stall_ns = 0, stalled_ns = 0, made = 0
        cdef int32_t key_count = self.key_count, latency_ms
        cdef bint slept = True, bare = self.bare, fresh_keys = self.fresh_keys, timed = self.rate > 0
        cdef StudyRequest *request
        random.state = key_seed(self.seed)
        draw_key_numbers(&random, keys, self.key_count, self.key_space)
        for i in range(self.n):
            if atomic_load(&self.state.stop):
                break
            if timed:           # no clock at full speed, as in the program for Kafka
                wait_ms = start_ms + self.work.due_ms[i] - clock_now_ms(self.state.clock)
                if wait_ms > 0:
                    self.sleep_ms(wait_ms)
                    slept = True
            latency_ms = self.work.latency_ms[i]
            request = request_new(&self.state, &self.design, latency_ms)
            if request is NULL:
                self.no_memory = True
                break
            gap_ns = request.made_ns - before_ns
            before_ns = request.made_ns
            if not slept and gap_ns > NS_PER_MS:
                stalled_ns += gap_ns
                longest_stall_ns = max(longest_stall_ns, gap_ns)
            slept = False
            if latency_ms < self.state.timeout_ms:
                self.design.retain(request)
                if not deadline_queue_add(&self.completions, request.completes_at_ms, request):
                    self.no_memory = True
                    self.design.release(request)
                    self.design.release(request)
                    break
            if not bare:
                if fresh_keys:
                    draw_key_numbers(&random, keys, key_count, self.key_space)
                if self.design.enqueue(&self.design, request, keys, key_count):
                    immediate += 1
            self.design.release(request)
            made += 1
        if self.no_memory:
            self.end()
        self.enqueue_ns = clock_now_ns(self.state.clock) - self.start_ns
        self.made, self.immediate = made, immediate
        self.longest_stall_ns, self.stalled_ns = longest_stall_ns, stalled_ns
        self.generator_cpu_ns = kb_thread_cpu_ns()

    cdef void complete(self) noexcept nogil:
        cdef StudyRequest *request
        cdef int64_t completed = 0, due_ms
        while not atomic_load(&self.state.stop):
            request = <StudyRequest *>deadline_queue_poll(&self.completions, POLL_MS)
            if request is NULL:
                continue
            if self.completions.next_item is not NULL:
                prefetch_lines(<char *>self.completions.next_item - self.design.head_bytes, self.design.head_bytes)
            due_ms = request.completes_at_ms
            if self.design.force_complete(request):
                self.completion_late_us[completed] = <int32_t>(clock_now_ns(self.state.clock) // 1000 - due_ms * 1000)
                completed += 1
            self.design.release(request)
        self.completed = completed
        self.completer_cpu_ns = kb_thread_cpu_ns()

    cdef void reap(self) noexcept nogil:
        cdef int64_t waits = kb_thread_waits()
        kb_short_slice()            # as in the broker's reapers
        while not atomic_load(&self.state.stop):
            self.design.turn(&self.design, REAPER_TURN_MS)
            self.reaper_turns += 1
        self.reaper_waits = kb_thread_waits() - waits
        self.reaper_cpu_ns = kb_thread_cpu_ns()

    cdef void sample(self) noexcept nogil:
        cdef TimerFigures figures
        while not atomic_load(&self.state.stop):
            self.peak_pending = max(self.peak_pending, self.design.pending(&self.design))
            self.rss_peak = max(self.rss_peak, kb_resident_bytes())
            if self.timer is not NULL:
                timer_figures(self.timer, &figures)
                self.samples += 1
                self.queued_sum += figures.queued_buckets
                self.live_sum += figures.live_buckets
                self.queued_peak = max(self.queued_peak, figures.queued_buckets)
                self.live_peak = max(self.live_peak, figures.live_buckets)
            if self.memory_bytes and self.rss_peak > self.memory_bytes:
                self.given_up = 1
            elif clock_now_ns(self.state.clock) - self.start_ns > self.limit_ns:
                self.given_up = 2
            if self.given_up:
                self.end()
            self.sleep_ms(SAMPLE_MS)
        self.sampler_cpu_ns = kb_thread_cpu_ns()

    cdef void drain(self) noexcept nogil:
        """Release the requests that were not completed."""
        cdef void *request = deadline_queue_take_any(&self.completions)
        while request is not NULL:
            self.design.release(<StudyRequest *>request)
            request = deadline_queue_take_any(&self.completions)

    cdef void wait(self) noexcept nogil:
        while atomic_load(&self.state.left) > 0 and not atomic_load(&self.state.stop):
            self.sleep_ms(1)
        self.elapsed_ns = clock_now_ns(self.state.clock) - self.start_ns

    def _generate(self):
        with nogil:
            self.generate()

    def _complete(self):
        with nogil:
            self.complete()

    def _reap(self):
        with nogil:
            self.reap()

    def _sample(self):
        with nogil:
            self.sample()

    def go(self) -> None:
        """Run until all requests are completed or expired, or the run gives up."""
        cdef int64_t cpu_ns, rss_end = 0
        cdef list started = []
        if self.start_ns:
            raise RuntimeError("a run goes once")
        helpers = [threading.Thread(target=self._complete, name="completion"),
                   threading.Thread(target=self._sample, name="sampler")]
        if not self.bare:
            helpers.append(threading.Thread(target=self._reap, name="reaper"))
        generator = threading.Thread(target=self._generate, name="generator")
        if self.timer is not NULL:
            timer_figures(self.timer, &self.at_start)
        self.rss_start = self.rss_peak = kb_resident_bytes()
        cpu_ns = kb_process_cpu_ns()
        self.start_ns = clock_now_ns(self.state.clock)
        try:
            for thread in (*helpers, generator):
                thread.start()
                started.append(thread)
            generator.join()
            with nogil:
                self.wait()
            self.cpu_ns = kb_process_cpu_ns() - cpu_ns
            rss_end = kb_resident_bytes()
            if self.timer is not NULL:
                timer_figures(self.timer, &self.at_end)
        finally:                        # all threads end before their objects are freed
            with nogil:
                self.end()
                deadline_queue_close(&self.completions)
                self.design.stop(&self.design)
            for thread in started:
                thread.join()
        self.rss_peak = max(self.rss_peak, rss_end)
        if self.no_memory:
            self.given_up = 1
        with nogil:
            self.drain()
            if self.timer is not NULL:
                timer_close(self.timer)
        if not self.given_up and not self.bare and self.immediate + self.completed + self.state.expired != self.n:
            raise RuntimeError(
                f"lost requests: {self.immediate} + {self.completed} + {self.state.expired} of {self.n}")

    def figures(self) -> dict:
        """Return the figures of the run, named as by the program for Kafka's purgatory if it has the figure.

        Raises: RuntimeError before ``go``.
        """
        cdef double made = max(self.made, 1), samples = max(self.samples, 1)
        cdef double enqueue_s, elapsed_s, cpu_s, last_due_ms
        if not self.elapsed_ns:
            raise RuntimeError("no figures before the run")
        enqueue_s, elapsed_s, cpu_s = self.enqueue_ns / 1e9, self.elapsed_ns / 1e9, self.cpu_ns / 1e9
        last_due_ms = max(1, self.work.due_ms[self.n - 1])
        found = {
            "given_up": (WHOLE, OUT_OF_MEMORY, OUT_OF_TIME)[self.given_up],
            "made": self.made,
            "drawn_to_complete": self.work.to_complete,
            "rate_target": self.rate,
            "rate_drawn": self.n * 1000 / last_due_ms if self.rate > 0 else 0,
            "rate_enqueue": self.made / enqueue_s,
            "rate_finish": self.made / elapsed_s,
            "enqueue_s": enqueue_s,
            "elapsed_s": elapsed_s,
            "cpu_s": cpu_s,
            "cpus": cpu_s / elapsed_s,
            "cpu_us_per_request": cpu_s * 1e6 / made,
            "cpu_s_by_thread": {
                "generator": self.generator_cpu_ns / 1e9,
                "completion": self.completer_cpu_ns / 1e9,
                "reaper": self.reaper_cpu_ns / 1e9,
                "sampler": self.sampler_cpu_ns / 1e9,
            },
            "stall_max_ms": self.longest_stall_ns / 1e6,
            "stalled_ms": self.stalled_ns / 1e6,
            "rss_start_mb": self.rss_start / 1048576.0,
            "rss_peak_mb": self.rss_peak / 1048576.0,
            "peak_pending": self.peak_pending,
            "immediate": self.immediate,
            "completed": self.completed,
            "expired": self.state.expired,
            "expired_though_due": self.state.expired_though_due,
            "expiry_late_ms": percentiles(self.state.expiry_late_us, min(self.state.expired, self.n)),
            "completion_late_ms": percentiles(self.completion_late_us, self.completed),
            "reaper_turns": self.reaper_turns,
            "reaper_wakeups_per_s": self.reaper_waits / elapsed_s,
        }
        if self.timer is not NULL and not self.bare:
            found["offers_per_request"] = (self.at_end.offers - self.at_start.offers) / made
            found["queue_items"] = {"mean": self.queued_sum / samples, "peak": self.queued_peak}
            found["live_buckets"] = {"mean": self.live_sum / samples, "peak": self.live_peak}
        return found


def rss_mb() -> float:
    """Return the resident memory of this process in MiB, 0 if the system does not report it."""
    return kb_resident_bytes() / 1048576.0


def trim() -> None:
    """Return free memory to the system, so that a run starts with little memory."""
    release_free_memory()


def held(StudyRun run not None) -> int:
    """Return the number of requests whose memory was not returned by the end of the run."""
    return requests_held(&run.state)
