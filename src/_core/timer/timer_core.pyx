"""Hierarchical timing wheel: the C timer. Differences from Kafka's: see ``timing_wheel``.

Source: ``SystemTimer``, ``TimingWheel``, ``TimerTaskList``, ``TimerTask``.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free
from kbroker._core.clock cimport (
    Clock, clock_add_waker, clock_now_ms, clock_now_ns, clock_release, clock_remove_waker, clock_retain,
    clock_wait_until,
)
from kbroker._core.containers.heap cimport heap_add, heap_clear, heap_reserve, heap_take_top, heap_top
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_store, cond_broadcast, cond_destroy, cond_init, mutex_destroy, mutex_init, mutex_lock,
    mutex_lock_spinning, mutex_try_lock, mutex_unlock,
)

cdef enum:
    NS_PER_MS = 1000000

cdef int64_t LARGEST_MS = INT64_MAX // NS_PER_MS    # 292 years: the end of the clock, and of every due time


# --- lists of entries

cdef inline void bucket_init(Bucket *bucket, int32_t level, int32_t slot) noexcept nogil:
    bucket.root.next = bucket.root.prev = &bucket.root
    bucket.expiration.key = -1
    bucket.level = level
    bucket.slot = slot


cdef inline void append(Bucket *bucket, TimerEntry *entry) noexcept nogil:
    cdef TimerEntry *root = &bucket.root
    entry.bucket = bucket
    entry.next = root
    entry.prev = root.prev
    root.prev.next = entry
    root.prev = entry


cdef void splice_due(Timer *timer, Bucket *bucket) noexcept nogil:
    """Append a lowest-level bucket to the due list: O(1). Entries keep a stale `bucket`, which only means pending."""
    cdef TimerEntry *first = bucket.root.next
    cdef TimerEntry *last = bucket.root.prev
    cdef TimerEntry *root = &timer.due.root
    if first is &bucket.root:
        return
    bucket.root.next = bucket.root.prev = &bucket.root
    first.prev = root.prev
    root.prev.next = first
    last.next = root
    root.prev = last


# --- the wheels

cdef bint add_wheel(Timer *timer) noexcept nogil:
    """Put one more wheel above the others; false when there are no more levels or no memory."""
    cdef int32_t level = timer.levels, slot
    cdef Wheel *wheel = &timer.wheels[level]
    cdef Wheel *below
    cdef int64_t buckets = <int64_t>(level + 1) * timer.wheel_size
    if level == LARGEST_LEVELS:
        return False
    if level > 0:
        below = &timer.wheels[level - 1]
        wheel.tick_ms = below.interval_ms
        wheel.current_ms = timer.wheels[0].current_ms
    if not heap_reserve(&timer.queue, buckets):
        return False
    wheel.buckets = <Bucket *>calloc(timer.wheel_size, sizeof(Bucket))
    if wheel.buckets is NULL:
        return False
    for slot in range(timer.wheel_size):
        bucket_init(&wheel.buckets[slot], level + 1, slot)
    wheel.current_ms -= wheel.current_ms % wheel.tick_ms
    if wheel.tick_ms > INT64_MAX // timer.wheel_size:
        wheel.interval_ms = INT64_MAX
    else:
        wheel.interval_ms = wheel.tick_ms * timer.wheel_size
    timer.levels = level + 1
    return True


cdef bint place(Timer *timer, TimerEntry *entry, Bucket *fresh) noexcept nogil:
    """Link an entry by its due time, into `fresh` if that has passed; true if a waiting thread must check again."""
    cdef int32_t level = 0
    cdef int64_t slot_number, left = entry.due_ms - timer.wheels[0].current_ms
    cdef Wheel *wheel = &timer.wheels[0]
    cdef Bucket *bucket
    if left < wheel.tick_ms:
        append(fresh, entry)
        return True
    while left >= wheel.interval_ms:
        level += 1
        if level == timer.levels and not add_wheel(timer):
            break
        wheel = &timer.wheels[level]
        left = entry.due_ms - wheel.current_ms
    if level < timer.levels:
        slot_number = entry.due_ms // wheel.tick_ms
    else:   # no memory for a wheel: the farthest existing slot, from which it is placed again later
        slot_number = wheel.current_ms // wheel.tick_ms + timer.wheel_size - 1
    bucket = &wheel.buckets[slot_number % timer.wheel_size]
    append(bucket, entry)
    slot_number *= wheel.tick_ms
    if bucket.expiration.key == slot_number:
        return False
    # The key was -1: the clock passes a slot only by taking its bucket. The queue is large enough for all buckets.
    heap_add(&timer.queue, &bucket.expiration, slot_number)
    timer.offers += 1
    return heap_top(&timer.queue) is &bucket.expiration


cdef void expire(Timer *timer, Bucket *bucket) noexcept nogil:
    """Move the clocks of the wheels to a bucket's time and empty it: into finer buckets, or the due entries."""
    cdef int32_t level
    cdef int64_t now_ms = bucket.expiration.key
    cdef Wheel *wheel
    cdef TimerEntry *entry
    for level in range(timer.levels):
        wheel = &timer.wheels[level]
        if now_ms < wheel.current_ms + wheel.tick_ms:
            break
        wheel.current_ms = now_ms - now_ms % wheel.tick_ms
    if bucket.level == 1:
        splice_due(timer, bucket)
    else:
        while bucket.root.next is not &bucket.root:
            entry = bucket.root.next
            unlink_entry(entry)
            place(timer, entry, &timer.due)
    bucket.expiration.key = -1


cdef int64_t due_after(Timer *timer, int64_t delay_ms) noexcept nogil:
    """Return the tick at or after now + delay: neither a started millisecond nor a started tick counts."""
    cdef int64_t tick_ms = timer.wheels[0].tick_ms
    cdef int64_t due_ms, now_ns
    if delay_ms <= 0:
        return clock_now_ms(timer.clock)
    now_ns = clock_now_ns(timer.clock)
    due_ms = now_ns // NS_PER_MS + (now_ns % NS_PER_MS != 0)
    due_ms = LARGEST_MS if delay_ms >= LARGEST_MS - due_ms else due_ms + delay_ms
    if tick_ms > 1 and due_ms % tick_ms and due_ms <= LARGEST_MS - tick_ms:
        due_ms += tick_ms - due_ms % tick_ms
    return due_ms


cdef bint add_locked(Timer *timer, TimerEntry *entry, int64_t due_ms) noexcept nogil:
    if entry.bucket is not NULL:
        unlink_entry(entry)
    else:
        timer.pending += 1
    entry.due_ms = due_ms
    return place(timer, entry, &timer.fresh) and timer.waiters > 0


cdef bint cancel_locked(Timer *timer, TimerEntry *entry) noexcept nogil:
    if entry.bucket is NULL:
        return False
    unlink_entry(entry)
    timer.pending -= 1
    return True


cdef inline TimerEntry *take_due_locked(Timer *timer) noexcept nogil:
    cdef TimerEntry *entry = timer.due.root.next
    if entry is &timer.due.root or timer.closed:
        return NULL
    unlink_entry(entry)
    timer.pending -= 1
    return entry


# --- the functions of the .pxd

cdef void wake_waiters(void *arg) noexcept nogil:
    cdef Timer *timer = <Timer *>arg
    mutex_lock(&timer.lock)         # with the lock held, a waiter that has just read the old time is inside its wait
    cond_broadcast(&timer.changed)
    mutex_unlock(&timer.lock)


cdef Timer *timer_new(Clock *clock, int64_t tick_ms, int32_t wheel_size) noexcept nogil:
    cdef Timer *timer
    if tick_ms < 1 or wheel_size < 2:
        return NULL
    timer = <Timer *>calloc(1, sizeof(Timer))
    if timer is NULL:
        return NULL
    timer.wheel_size = wheel_size
    timer.wheels[0].tick_ms = tick_ms
    timer.wheels[0].current_ms = clock_now_ms(clock)
    bucket_init(&timer.due, 0, 0)
    bucket_init(&timer.fresh, 0, 0)
    if not add_wheel(timer):
        heap_clear(&timer.queue)
        free(timer)
        return NULL
    mutex_init(&timer.lock)
    cond_init(&timer.changed)
    atomic_store(&timer.refs, 1)
    timer.clock = clock_retain(clock)
    timer.waker.wake = wake_waiters
    timer.waker.arg = timer
    clock_add_waker(clock, &timer.waker)
    return timer


cdef Timer *timer_retain(Timer *timer) noexcept nogil:
    atomic_add_fetch(&timer.refs, 1)
    return timer


cdef void timer_release(Timer *timer) noexcept nogil:
    cdef int32_t level
    if timer is NULL or atomic_add_fetch(&timer.refs, -1) != 0:
        return
    clock_remove_waker(timer.clock, &timer.waker)
    clock_release(timer.clock)
    for level in range(timer.levels):
        free(timer.wheels[level].buckets)
    heap_clear(&timer.queue)
    cond_destroy(&timer.changed)
    mutex_destroy(&timer.lock)
    free(timer)


cdef void timer_add(Timer *timer, TimerEntry *entry, int64_t delay_ms) noexcept nogil:
    cdef int64_t due_ms = due_after(timer, delay_ms)
    cdef bint wake
    mutex_lock_spinning(&timer.lock)
    wake = add_locked(timer, entry, due_ms)
    mutex_unlock(&timer.lock)
    if wake:
        cond_broadcast(&timer.changed)


cdef bint timer_cancel(Timer *timer, TimerEntry *entry) noexcept nogil:
    cdef bint was_pending
    mutex_lock_spinning(&timer.lock)
    was_pending = cancel_locked(timer, entry)
    mutex_unlock(&timer.lock)
    return was_pending


cdef int64_t timer_pending(Timer *timer) noexcept nogil:
    cdef int64_t pending
    mutex_lock(&timer.lock)
    pending = timer.pending
    mutex_unlock(&timer.lock)
    return pending


cdef bint timer_collect(Timer *timer, int64_t timeout_ms) noexcept nogil:
    cdef int64_t now_ns = clock_now_ns(timer.clock)
    cdef int64_t deadline_ns, wake_ns, wake_calls
    if timeout_ms <= 0:
        deadline_ns = now_ns
    elif timeout_ms >= (INT64_MAX - now_ns) // NS_PER_MS:
        deadline_ns = INT64_MAX
    else:
        deadline_ns = now_ns + timeout_ms * NS_PER_MS
    mutex_lock(&timer.lock)
    wake_calls = timer.wake_calls
    while True:
        if timer.closed:
            mutex_unlock(&timer.lock)
            return False
        if timer.due.root.next is not &timer.due.root or timer.fresh.root.next is not &timer.fresh.root:
            break
        now_ns = clock_now_ns(timer.clock)
        wake_ns = deadline_ns
        if timer.queue.count > 0:
            wake_ns = min(wake_ns, heap_top(&timer.queue).key * NS_PER_MS)
            if now_ns >= heap_top(&timer.queue).key * NS_PER_MS:
                break
        if now_ns >= deadline_ns or timer.wake_calls != wake_calls:
            mutex_unlock(&timer.lock)
            return False
        timer.waiters += 1
        clock_wait_until(timer.clock, &timer.changed, &timer.lock, wake_ns)
        timer.waiters -= 1
    now_ns = clock_now_ns(timer.clock)
    while timer.queue.count > 0 and heap_top(&timer.queue).key * NS_PER_MS <= now_ns:
        expire(timer, <Bucket *>heap_take_top(&timer.queue))
    splice_due(timer, &timer.fresh)
    mutex_unlock(&timer.lock)
    return True


cdef TimerEntry *timer_take_due(Timer *timer) noexcept nogil:
    cdef TimerEntry *entry
    mutex_lock(&timer.lock)
    entry = take_due_locked(timer)
    mutex_unlock(&timer.lock)
    return entry


cdef TimerEntry *timer_take_due_with_gil(Timer *timer) noexcept:
    cdef TimerEntry *entry
    if mutex_try_lock(&timer.lock):
        entry = take_due_locked(timer)
        mutex_unlock(&timer.lock)
    else:
        with nogil:
            entry = timer_take_due(timer)
    return entry


cdef int32_t timer_take_due_batch(Timer *timer, TimerEntry **entries, int32_t capacity) noexcept nogil:
    cdef int32_t taken = 0
    cdef TimerEntry *entry
    mutex_lock_spinning(&timer.lock)
    while taken < capacity:
        entry = take_due_locked(timer)
        if entry is NULL:
            break
        entries[taken] = entry
        taken += 1
    mutex_unlock(&timer.lock)
    return taken


cdef bint timer_advance(Timer *timer, int64_t timeout_ms) noexcept nogil:
    cdef TimerEntry *entry
    if not timer_collect(timer, timeout_ms):
        return False
    while True:
        entry = timer_take_due(timer)
        if entry is NULL:
            return True
        entry.fire(entry)


cdef void timer_close(Timer *timer) noexcept nogil:
    mutex_lock(&timer.lock)
    timer.closed = True
    mutex_unlock(&timer.lock)
    cond_broadcast(&timer.changed)


cdef void timer_wake(Timer *timer) noexcept nogil:
    mutex_lock(&timer.lock)
    timer.wake_calls += 1
    mutex_unlock(&timer.lock)
    cond_broadcast(&timer.changed)


cdef bint timer_is_closed(Timer *timer) noexcept nogil:
    cdef bint closed
    mutex_lock(&timer.lock)
    closed = timer.closed
    mutex_unlock(&timer.lock)
    return closed


cdef bint timer_is_quiet(Timer *timer) noexcept nogil:
    cdef bint quiet
    mutex_lock(&timer.lock)
    quiet = timer.closed or (
        timer.waiters > 0
        and timer.due.root.next is &timer.due.root
        and timer.fresh.root.next is &timer.fresh.root
        and (timer.queue.count == 0 or heap_top(&timer.queue).key * NS_PER_MS > clock_now_ns(timer.clock)))
    mutex_unlock(&timer.lock)
    return quiet


cdef Clock *timer_clock(Timer *timer) noexcept nogil:
    return timer.clock


cdef Bucket *bucket_at(Timer *timer, int32_t level, int32_t slot) noexcept nogil:
    """Return a list of entries: in the order of levels and slots, the lists become due."""
    if level < 0:
        return &timer.due if level == -2 else &timer.fresh
    return &timer.wheels[level].buckets[slot]


cdef void timer_figures(Timer *timer, TimerFigures *figures) noexcept nogil:
    cdef int32_t level, slot
    cdef Bucket *bucket
    mutex_lock(&timer.lock)
    figures.pending = timer.pending
    figures.offers = timer.offers
    figures.queued_buckets = timer.queue.count
    figures.live_buckets = 0
    for level in range(timer.levels):
        for slot in range(timer.wheel_size):
            bucket = bucket_at(timer, level, slot)
            figures.live_buckets += bucket.root.next is not &bucket.root
    mutex_unlock(&timer.lock)
