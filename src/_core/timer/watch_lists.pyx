"""Watch lists of a purgatory: a hash table of circular lists in each shard.

Source: ``DelayedOperationPurgatory.Watchers``, whose lists keep completed operations and are searched for them.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from kbroker._core.sync cimport (
    atomic_load_relaxed, atomic_store, mutex_destroy, mutex_init, mutex_lock_spinning, mutex_unlock,
)

cdef enum:
    FIRST_TABLE_SIZE = 8
    LARGEST_TABLE_SIZE = 1 << 29
    LINE = 64                   # bytes of a cache line


cdef inline void *next_line(void *memory) noexcept nogil:
    return <void *>((<uintptr_t>memory + LINE - 1) // LINE * LINE)


cdef bint watch_table_init(WatchTable *table, int32_t shards) noexcept nogil:
    cdef int32_t i
    table.memory = calloc(1, shards * sizeof(Shard) + LINE)
    if table.memory is NULL:
        return False
    table.shards = <Shard *>next_line(table.memory)
    table.shard_count = shards
    for i in range(shards):
        mutex_init(&table.shards[i].lock)
    return True


cdef void watch_table_destroy(WatchTable *table) noexcept nogil:
    cdef int32_t i
    for i in range(table.shard_count):
        take_all(&table.shards[i])      # no watcher is left, but lists with traces may be
        free(table.shards[i].table)
        mutex_destroy(&table.shards[i].lock)
    free(table.memory)


cdef void watcher_block_init(
        WatchTable *table, WatcherBlock *block, void *owner, Key *keys, int32_t count) noexcept nogil:
    cdef int32_t i
    block.owner = owner
    block.home = NULL
    block.count = count
    for i in range(count):
        block.watchers[i].list = NULL
        block.watchers[i].shard = shard_number(table, &keys[i])
        block.watchers[i].index = i


# --- the table of a shard

cdef inline int64_t slot_of(Shard *shard, Key *key) noexcept nogil:
    return <int64_t>((key_hash(key) >> 32) & <uint64_t>(shard.table_size - 1))


cdef bint grow_table(Shard *shard) noexcept nogil:
    cdef int64_t slot
    cdef int32_t old_size = shard.table_size, i
    cdef WatchList **old = shard.table
    cdef WatchList **table = NULL
    cdef WatchList *here
    cdef WatchList *after
    cdef int32_t size = old_size * 2 if old_size else FIRST_TABLE_SIZE
    if old_size < LARGEST_TABLE_SIZE:
        table = <WatchList **>calloc(size, sizeof(WatchList *))
    if table is NULL:
        return old_size > 0         # a fuller table works too
    shard.table = table
    shard.table_size = size
    for i in range(old_size):
        here = old[i]
        while here is not NULL:
            after = here.root.list
            slot = slot_of(shard, &here.key)
            here.root.list = table[slot]
            table[slot] = here
            here = after
    free(old)
    return True


cdef WatchList *find_list(Shard *shard, Key *key) noexcept nogil:
    cdef WatchList *here
    if shard.table_size == 0:
        return NULL
    here = shard.table[slot_of(shard, key)]
    while here is not NULL and (here.key.high != key.high or here.key.low != key.low):
        here = here.root.list
    return here


cdef WatchList *get_or_make_list(Shard *shard, Key *key) noexcept nogil:
    cdef WatchList *found = find_list(shard, key)
    cdef int64_t slot
    cdef void *memory
    if found is not NULL:
        return found
    if shard.lists >= shard.table_size and not grow_table(shard):
        return NULL
    memory = calloc(1, sizeof(WatchList) + LINE)
    if memory is NULL:
        return NULL
    found = <WatchList *>next_line(memory)
    found.root.index = <int32_t>(<char *>found - <char *>memory)
    found.root.next = found.root.prev = &found.root
    found.key.high = key.high
    found.key.low = key.low
    slot = slot_of(shard, key)
    found.root.list = shard.table[slot]
    shard.table[slot] = found
    shard.lists += 1
    return found


cdef void drop_list(Shard *shard, WatchList *watchers) noexcept nogil:
    cdef WatchList **link = &shard.table[slot_of(shard, &watchers.key)]
    while link[0] is not watchers:
        link = &link[0].root.list
    link[0] = watchers.root.list
    shard.lists -= 1
    free(<char *>watchers - watchers.root.index)


# --- watching and leaving

cdef bint watch(Shard *shard, Key *key, Watcher *watcher) noexcept nogil:
    cdef WatchList *watchers = get_or_make_list(shard, key)
    if watchers is NULL:
        return False
    watcher.list = watchers
    watcher.next = &watchers.root
    watcher.prev = watchers.root.prev
    watcher.prev.next = watcher
    watchers.root.prev = watcher
    watchers.length += 1
    return True


cdef inline void add_trace(Shard *shard, WatchList *watchers) noexcept nogil:
    watchers.traces += 1
    if not atomic_load_relaxed(&shard.has_traces):
        atomic_store(&shard.has_traces, 1)


cdef bint leave_trace(Shard *shard, Key *key) noexcept nogil:
    cdef WatchList *watchers = get_or_make_list(shard, key)
    if watchers is NULL:
        return False
    add_trace(shard, watchers)
    return True


cdef inline bint leave_list(Shard *shard, Watcher *watcher) noexcept nogil:
    if watcher.list is NULL:
        return False
    watcher.prev.next = watcher.next
    watcher.next.prev = watcher.prev
    watcher.list.length -= 1
    add_trace(shard, watcher.list)
    watcher.list = NULL
    return True


cdef void leave_lists(WatchTable *table, WatcherBlock **blocks, int32_t count, int64_t *left) noexcept nogil:
    cdef int32_t i, index = 0
    cdef Shard *shard
    cdef Shard *held
    cdef bint more = True
    for i in range(count):
        left[i] = 0
    while more:                     # the first key of each, then the second of each
        more = False
        held = NULL
        for i in range(count):
            if index >= blocks[i].count:
                continue
            more = True
            shard = &table.shards[blocks[i].watchers[index].shard]
            if shard is not held:
                if held is not NULL:
                    mutex_unlock(&held.lock)
                mutex_lock_spinning(&shard.lock)
                held = shard
            left[i] += leave_list(shard, &blocks[i].watchers[index])
        if held is not NULL:
            mutex_unlock(&held.lock)
        index += 1


cdef void clear_traces(Shard *shard, Key *key) noexcept nogil:
    cdef WatchList *watchers = find_list(shard, key)
    if watchers is NULL:
        return
    watchers.traces = 0
    if watchers.length == 0:
        drop_list(shard, watchers)


cdef Watcher *empty_list(Shard *shard, WatchList *watchers, Watcher **last) noexcept nogil:
    """Remove all watchers of a list; return them as a chain, whose end is `last` (NULL: empty)."""
    cdef Watcher *first = watchers.root.next
    cdef Watcher *here = first
    last[0] = NULL
    while here is not &watchers.root:
        here.list = NULL
        last[0] = here
        here = here.next
    watchers.length = 0
    watchers.root.next = watchers.root.prev = &watchers.root
    if last[0] is NULL:
        return NULL
    last[0].next = NULL
    return first


cdef Watcher *take_key(Shard *shard, Key *key, int64_t *traces) noexcept nogil:
    cdef WatchList *watchers = find_list(shard, key)
    cdef Watcher *chain
    cdef Watcher *last
    if watchers is NULL:
        return NULL
    traces[0] += watchers.traces
    chain = empty_list(shard, watchers, &last)
    drop_list(shard, watchers)
    return chain


cdef Watcher *take_all(Shard *shard) noexcept nogil:
    cdef Watcher *chain = NULL
    cdef Watcher *first
    cdef Watcher *last
    cdef int32_t slot
    cdef WatchList *watchers
    for slot in range(shard.table_size):
        while shard.table[slot] is not NULL:
            watchers = shard.table[slot]
            first = empty_list(shard, watchers, &last)
            if last is not NULL:
                last.next = chain
                chain = first
            drop_list(shard, watchers)
    return chain


cdef int64_t watched_in(Shard *shard) noexcept nogil:
    cdef int64_t watched = 0
    cdef int32_t slot
    cdef WatchList *here
    for slot in range(shard.table_size):
        here = shard.table[slot]
        while here is not NULL:
            watched += here.length + here.traces
            here = here.root.list
    return watched


cdef void purge_traces(WatchTable *table) noexcept nogil:
    cdef int32_t i, slot
    cdef Shard *shard
    cdef WatchList *here
    cdef WatchList *after
    for i in range(table.shard_count):
        shard = &table.shards[i]
        if not atomic_load_relaxed(&shard.has_traces):
            continue
        mutex_lock_spinning(&shard.lock)
        for slot in range(shard.table_size):
            here = shard.table[slot]
            while here is not NULL:
                after = here.root.list
                here.traces = 0
                if here.length == 0:
                    drop_list(shard, here)
                here = after
        atomic_store(&shard.has_traces, 0)
        mutex_unlock(&shard.lock)
