"""Purgatory: operations that wait for an event on one of their keys, or for their time-out. The C part.

A watcher holds a count of its operation. An operation that completes leaves lists and timer at once, except for the
traces that keep the reported lengths equal to Kafka's. Iteration works on a counted snapshot, never under the shard
lock.
Source: ``DelayedOperationPurgatory``, ``DelayedOperation``.
"""
from libc.stdint cimport int32_t, int64_t, intptr_t
from libc.stdlib cimport calloc, free, malloc

from kbroker._core.sync cimport (
    Mutex, atomic_add_fetch, atomic_load, atomic_load_seq, atomic_store, atomic_store_seq, atomic_swap, mutex_destroy,
    mutex_init, mutex_lock, mutex_lock_spinning, mutex_try_lock, mutex_unlock, prefetch,
)
from kbroker._core.timer.timer_core cimport (
    Timer, TimerEntry, timer_add, timer_cancel, timer_collect, timer_release, timer_retain, timer_take_due_batch,
    timer_wake,
)
from kbroker._core.timer.watch_lists cimport (
    Key, Shard, WatchList, Watcher, WatcherBlock, clear_traces, find_list, leave_lists, leave_trace, owner_of,
    purge_traces, shard_number, take_all, take_key, watch, watch_table_destroy, watch_table_init, watched_in,
    watcher_block_bytes, watcher_block_init,
)


cdef enum:
    STACK_SNAPSHOT = 32         # a list is seldom longer; longer ones allocate
    FIRE_BATCH = 32             # expired ones taken from the timer at once
    PREFETCH_AHEAD = 3


# --- operations

cdef void operation_init(Operation *op, OperationTable *table, int64_t timeout_ms, Mutex *lock) noexcept nogil:
    atomic_store(&op.refs, 1)
    atomic_store(&op.completed, 0)
    atomic_store(&op.is_pending, 0)
    op.table = table
    mutex_init(&op.own_lock)
    op.lock = lock if lock is not NULL else &op.own_lock
    op.timer_entry.bucket = NULL
    op.timer_entry.fire = fire_operation
    op.self_ = op
    atomic_store(&op.block, 0)
    op.reserved = NULL
    op.reserve_for = 0
    op.timeout_ms = timeout_ms


cdef inline WatcherBlock *block_of(Operation *op) noexcept nogil:
    """Return the block by a sequentially consistent load: a watch or a concurrent completion sees the other."""
    return <WatcherBlock *><intptr_t>atomic_load_seq(&op.block)


cdef Purgatory *purgatory_of(Operation *op) noexcept nogil:
    cdef WatcherBlock *block = block_of(op)
    return <Purgatory *>block.home if block is not NULL else NULL


cdef void operation_release(Operation *op) noexcept nogil:
    cdef WatcherBlock *block
    cdef Purgatory *purgatory = NULL
    if atomic_add_fetch(&op.refs, -1) != 0:
        return
    block = block_of(op)
    if block is not NULL:
        purgatory = <Purgatory *>block.home
        if block is not op.reserved:
            free(block)
    mutex_destroy(&op.own_lock)
    op.table.destroy(op)
    purgatory_release(purgatory)


cdef bint operation_is_completed(Operation *op) noexcept nogil:
    return atomic_load_seq(&op.completed) != 0


cdef bint win_completion(Operation *op) noexcept nogil:
    return not operation_is_completed(op) and atomic_swap(&op.completed, 1) == 0


cdef void stop_timeout(Operation *op) noexcept nogil:
    cdef Purgatory *purgatory = purgatory_of(op)
    if purgatory is not NULL and timer_cancel(purgatory.timer, &op.timer_entry):
        atomic_add_fetch(&purgatory.delayed, -1)
        operation_release(op)       # the timer's count; the caller has another one


cdef void leave_all_lists(Operation *op) noexcept nogil:
    cdef WatcherBlock *block = block_of(op)
    cdef int64_t left
    if block is NULL:
        return
    leave_lists(&(<Purgatory *>block.home).lists, &block, 1, &left)
    if left > 0:
        atomic_add_fetch(&op.refs, -left)     # never the last: the caller has one


cdef bint operation_force_complete(Operation *op) noexcept nogil:
    prefetch(&op.table)             # an operation that has waited for long is in no cache: fetch its parts at once
    prefetch(<char *>op + sizeof(Operation))
    if not win_completion(op):
        return False
    stop_timeout(op)
    op.table.on_complete(op)
    leave_all_lists(op)
    return True


cdef inline bint expire(Operation *op) noexcept nogil:
    atomic_add_fetch(&purgatory_of(op).delayed, -1)
    if not win_completion(op):
        return False
    op.table.on_complete(op)
    if op.table.on_expiration is not NULL:
        op.table.on_expiration(op)
    return True


cdef void fire_operation(TimerEntry *entry) noexcept nogil:
    cdef Operation *op = operation_of(entry)
    if expire(op):
        leave_all_lists(op)
    operation_release(op)           # the timer's


cdef void leave_lists_together(Operation **ops, int32_t count) noexcept nogil:
    """Call leave_all_lists for several operations, which may belong to more than one purgatory."""
    cdef WatcherBlock *blocks[FIRE_BATCH]
    cdef int64_t left[FIRE_BATCH]
    cdef int32_t first = 0, end, i
    for i in range(count):
        blocks[i] = block_of(ops[i])
    while first < count:
        end = first + 1
        while end < count and blocks[end].home is blocks[first].home:
            end += 1
        leave_lists(&(<Purgatory *>blocks[first].home).lists, &blocks[first], end - first, &left[first])
        first = end
    for i in range(count):
        if left[i] > 0:
            atomic_add_fetch(&ops[i].refs, -left[i])      # never the last: the timer's is left


cdef void fire_batch(TimerEntry **entries, int32_t count) noexcept nogil:
    """Call all callbacks in order, then leave the lists: a contended lock is taken once, not for each operation."""
    cdef Operation *won[FIRE_BATCH]
    cdef int32_t i, wins = 0
    for i in range(count):
        if i + PREFETCH_AHEAD < count and entries[i + PREFETCH_AHEAD].fire is fire_operation:
            prefetch(operation_of(entries[i + PREFETCH_AHEAD]).reserved)
        if entries[i].fire is not fire_operation:
            entries[i].fire(entries[i])
        elif expire(operation_of(entries[i])):
            won[wins] = operation_of(entries[i])
            wins += 1
        else:
            operation_release(operation_of(entries[i]))
    leave_lists_together(won, wins)
    for i in range(wins):
        operation_release(won[i])   # the timer's


cdef bint try_alone(Operation *op) noexcept nogil:
    """Try under the operation's own lock, or let its holder try again; return whether it completed. KAFKA-6653."""
    cdef bint done = False, again = True
    while again and not operation_is_completed(op):
        if mutex_try_lock(&op.own_lock):
            atomic_swap(&op.is_pending, 0)     # acquires the changes that the thread with the mark has seen
            done = op.table.try_complete(op)
            mutex_unlock(&op.own_lock)
            again = not done and atomic_load_seq(&op.is_pending) != 0
        else:
            # The owner sees a mark that was set before. It may have missed a new mark: try once more.
            again = atomic_swap(&op.is_pending, 1) == 0
    return done


cdef bint try_under_lock(Operation *op) noexcept nogil:
    cdef bint done
    cdef Mutex *lock = op.lock
    if lock is &op.own_lock:
        return try_alone(op)
    if lock is not NULL:
        mutex_lock(lock)
    done = op.table.try_complete(op)
    if lock is not NULL:
        mutex_unlock(lock)
    return done


# --- the purgatory

cdef Purgatory *purgatory_new(Timer *timer, int64_t purge_interval, int32_t shards) noexcept nogil:
    cdef Purgatory *purgatory
    if shards < 1:
        return NULL
    purgatory = <Purgatory *>calloc(1, sizeof(Purgatory))
    if purgatory is NULL:
        return NULL
    if not watch_table_init(&purgatory.lists, shards):
        free(purgatory)
        return NULL
    atomic_store(&purgatory.refs, 1)
    purgatory.purge_interval = purge_interval
    purgatory.timer = timer_retain(timer)
    return purgatory


cdef Purgatory *purgatory_retain(Purgatory *purgatory) noexcept nogil:
    atomic_add_fetch(&purgatory.refs, 1)
    return purgatory


cdef void purgatory_release(Purgatory *purgatory) noexcept nogil:
    if purgatory is NULL or atomic_add_fetch(&purgatory.refs, -1) != 0:
        return
    watch_table_destroy(&purgatory.lists)       # no watcher is left: its operation would hold a count
    timer_release(purgatory.timer)
    free(purgatory)


cdef bint watch_all(Purgatory *purgatory, Operation *op, Key *keys, int32_t key_count) noexcept nogil:
    """Watch an operation under its keys; false when closed or without memory for its watchers.

    A key without memory for a new list is not watched: the operation expires if no other key completes it.
    """
    cdef int32_t i
    cdef int64_t unused = 0
    cdef Shard *shard
    cdef bint closed = False
    cdef WatcherBlock *block = op.reserved
    if key_count > op.reserve_for:
        block = <WatcherBlock *>malloc(watcher_block_bytes(key_count))
    if block is NULL:
        return False
    watcher_block_init(&purgatory.lists, block, op, keys, key_count)
    block.home = purgatory_retain(purgatory)
    atomic_add_fetch(&op.refs, key_count)         # before anyone can see a watcher
    atomic_store_seq(&op.block, <int64_t><intptr_t>block)
    for i in range(key_count):
        shard = &purgatory.lists.shards[block.watchers[i].shard]
        mutex_lock_spinning(&shard.lock)
        closed = atomic_load_seq(&purgatory.closed) != 0    # under the lock: close empties each shard after saying so
        if closed:
            unused += key_count - i
        elif operation_is_completed(op):    # by a thread that may have left the lists already
            leave_trace(shard, &keys[i])
            unused += 1
        elif not watch(shard, &keys[i], &block.watchers[i]):
            unused += 1
        mutex_unlock(&shard.lock)
        if closed:
            break
    if unused:
        atomic_add_fetch(&op.refs, -unused)       # never the last: the caller has one
    if closed:
        return False
    atomic_add_fetch(&purgatory.estimated_total, 1)
    return True


cdef void start_timeout(Purgatory *purgatory, Operation *op) noexcept nogil:
    """Start the time-out, and test the completion again: before timer_add, its thread finds no entry to cancel."""
    if operation_is_completed(op):
        return
    atomic_add_fetch(&op.refs, 1)
    atomic_add_fetch(&purgatory.delayed, 1)
    timer_add(purgatory.timer, &op.timer_entry, op.timeout_ms)
    if operation_is_completed(op) or atomic_load_seq(&purgatory.closed):
        stop_timeout(op)


cdef bint purgatory_try_complete_else_watch(
        Purgatory *purgatory, Operation *op, Key *keys, int32_t key_count) noexcept nogil:
    cdef bint done, watched = False
    cdef Mutex *lock = op.lock
    if lock is not NULL:
        mutex_lock(lock)
    done = op.table.try_complete(op)
    if not done:
        watched = watch_all(purgatory, op, keys, key_count)
        if watched:
            done = op.table.try_complete(op)
    if lock is not NULL:
        mutex_unlock(lock)
    if done:
        return True
    if not watched:
        return operation_force_complete(op)     # no event would ever wake it
    if atomic_load_seq(&op.is_pending) and try_under_lock(op):
        return True
    start_timeout(purgatory, op)
    return False


cdef inline void release_looked_at(Operation *op) noexcept nogil:
    if op.table.let_go is NULL or operation_is_completed(op):
        operation_release(op)
    else:
        op.table.let_go(op)


cdef int64_t purgatory_check_and_complete(Purgatory *purgatory, Key *key) noexcept nogil:
    cdef Operation *on_stack[STACK_SNAPSHOT]
    cdef Operation **snapshot = on_stack
    cdef Shard *shard = &purgatory.lists.shards[shard_number(&purgatory.lists, key)]
    cdef Watcher *here
    cdef WatchList *watchers
    cdef int64_t length = 0, capacity = STACK_SNAPSHOT, completed = 0, i
    mutex_lock_spinning(&shard.lock)
    watchers = find_list(shard, key)
    if watchers is NULL:
        mutex_unlock(&shard.lock)
        return 0
    if watchers.length > capacity:
        snapshot = <Operation **>malloc(watchers.length * sizeof(Operation *))
        if snapshot is NULL:        # check the first ones; a later check or their timer completes others
            snapshot = on_stack
        else:
            capacity = watchers.length
    here = watchers.root.next
    while here is not &watchers.root and length < capacity:
        snapshot[length] = <Operation *>owner_of(here)
        atomic_add_fetch(&snapshot[length].refs, 1)
        length += 1
        here = here.next
    mutex_unlock(&shard.lock)
    for i in range(length):
        if not operation_is_completed(snapshot[i]) and try_under_lock(snapshot[i]):
            completed += 1
        release_looked_at(snapshot[i])
    if snapshot is not on_stack:
        free(snapshot)
    mutex_lock_spinning(&shard.lock)
    clear_traces(shard, key)
    mutex_unlock(&shard.lock)
    return completed


cdef Watcher *take_watchers(Purgatory *purgatory, Key *key, int64_t *traces) noexcept nogil:
    cdef Shard *shard = &purgatory.lists.shards[shard_number(&purgatory.lists, key)]
    cdef Watcher *chain
    mutex_lock(&shard.lock)
    chain = take_key(shard, key, traces)
    mutex_unlock(&shard.lock)
    return chain


cdef int64_t purgatory_cancel_for_key(Purgatory *purgatory, Key *key) noexcept nogil:
    cdef int64_t count = 0
    cdef Watcher *chain = take_watchers(purgatory, key, &count)
    cdef Operation *op
    while chain is not NULL:
        op = <Operation *>owner_of(chain)
        chain = chain.next
        count += 1
        stop_timeout(op)
        operation_release(op)       # the list's
    return count


cdef void rewatch(Purgatory *purgatory, Key *key, Watcher *watcher) noexcept nogil:
    cdef Shard *shard = &purgatory.lists.shards[watcher.shard]
    cdef Operation *op = <Operation *>owner_of(watcher)
    cdef bint watched = False
    mutex_lock(&shard.lock)
    if not atomic_load_seq(&purgatory.closed):
        if operation_is_completed(op):
            leave_trace(shard, key)
        else:
            watched = watch(shard, key, watcher)
    mutex_unlock(&shard.lock)
    if not watched:
        operation_release(op)


cdef int64_t purgatory_watched(Purgatory *purgatory) noexcept nogil:
    cdef int64_t watched = 0
    cdef int32_t i
    cdef Shard *shard
    for i in range(purgatory.lists.shard_count):
        shard = &purgatory.lists.shards[i]
        mutex_lock(&shard.lock)
        watched += watched_in(shard)
        mutex_unlock(&shard.lock)
    return watched


cdef int64_t purgatory_delayed(Purgatory *purgatory) noexcept nogil:
    return atomic_load(&purgatory.delayed)


cdef void maybe_purge(Purgatory *purgatory) noexcept nogil:
    cdef int64_t delayed = atomic_load(&purgatory.delayed)
    if atomic_load(&purgatory.estimated_total) - delayed <= purgatory.purge_interval:
        return
    atomic_store(&purgatory.estimated_total, delayed)   # first: completions meanwhile raise it a little
    purge_traces(&purgatory.lists)


cdef bint purgatory_advance(Purgatory *purgatory, int64_t timeout_ms) noexcept nogil:
    cdef TimerEntry *entries[FIRE_BATCH]
    cdef int32_t count
    cdef bint polled = timer_collect(purgatory.timer, timeout_ms)
    while polled:
        count = timer_take_due_batch(purgatory.timer, entries, FIRE_BATCH)
        fire_batch(entries, count)
        if count < FIRE_BATCH:
            break
    maybe_purge(purgatory)
    return polled


cdef void purgatory_empty(Purgatory *purgatory, void (*drop)(Operation *op) noexcept nogil) noexcept nogil:
    cdef Watcher *chain
    cdef Operation *op
    cdef int32_t i
    cdef Shard *shard
    atomic_store_seq(&purgatory.closed, 1)
    for i in range(purgatory.lists.shard_count):
        shard = &purgatory.lists.shards[i]
        mutex_lock(&shard.lock)
        chain = take_all(shard)
        mutex_unlock(&shard.lock)
        while chain is not NULL:
            op = <Operation *>owner_of(chain)
            chain = chain.next      # before the release: the watcher is freed with its operation
            if drop is NULL:
                operation_force_complete(op)
            else:
                stop_timeout(op)
                drop(op)
            operation_release(op)   # the list's
    timer_wake(purgatory.timer)


cdef void purgatory_close(Purgatory *purgatory) noexcept nogil:
    purgatory_empty(purgatory, NULL)


# --------------------------------------------------- snapshots

cdef inline int32_t key_count_of(Watcher *watcher) noexcept nogil:
    cdef Watcher *first = watcher - watcher.index
    return (<WatcherBlock *>(<char *>first - (sizeof(WatcherBlock) - sizeof(Watcher)))).count


cdef void copy_shard(PurgatorySnapshot *into, Shard *shard) noexcept nogil:
    """Copy the watch lists of a shard; the caller holds its lock."""
    cdef int32_t slot, looks = 0
    cdef WatchList *watchers
    cdef Watcher *here
    cdef WaitingEntry *entry
    for slot in range(shard.table_size):
        watchers = shard.table[slot]
        while watchers is not NULL:
            here = watchers.root.next
            while here is not &watchers.root:
                if looks == LOOKS_PER_TURN or into.count == into.capacity:
                    into.is_truncated = True
                    return
                looks += 1
                entry = &into.entries[into.count]
                entry.op = <Operation *>owner_of(here)
                entry.key = watchers.key
                entry.key_count = key_count_of(here)
                atomic_add_fetch(&entry.op.refs, 1)     # the list holds one, so the operation lives
                into.count += 1
                here = here.next
            watchers = watchers.root.list


cdef bint purgatory_snapshot_take(PurgatorySnapshot *into, Purgatory *purgatory, int64_t operations) noexcept nogil:
    cdef int32_t i
    cdef Shard *shard
    into.capacity = operations * ENTRIES_PER_OPERATION
    into.count = 0
    into.is_truncated = False
    into.entries = <WaitingEntry *>malloc(<size_t>(into.capacity if into.capacity > 0 else 1) * sizeof(WaitingEntry))
    if into.entries is NULL:
        return False
    for i in range(purgatory.lists.shard_count):
        shard = &purgatory.lists.shards[i]
        mutex_lock_spinning(&shard.lock)
        copy_shard(into, shard)
        mutex_unlock(&shard.lock)
    return True


cdef void purgatory_snapshot_free(PurgatorySnapshot *snapshot) noexcept nogil:
    cdef int64_t i
    for i in range(snapshot.count):
        release_looked_at(snapshot.entries[i].op)
    free(snapshot.entries)
    snapshot.entries = NULL
    snapshot.count = 0


cdef int64_t operation_due_ms(Purgatory *purgatory, Operation *op) noexcept nogil:
    cdef int64_t due_ms = -1
    if operation_is_completed(op):
        return -1
    mutex_lock(&purgatory.timer.lock)
    if op.timer_entry.bucket is not NULL:
        due_ms = op.timer_entry.due_ms
    mutex_unlock(&purgatory.timer.lock)
    return due_ms
