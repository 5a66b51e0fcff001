"""Watch lists of a purgatory: by key, the operations that wait. A list of a key lives while it has watchers or traces.

An operation that completes leaves its lists at once, and a trace in each: a count, which a check of that key or a purge
removes. So the lengths equal those of Kafka, whose lists keep a completed operation until a check or a purge finds it;
here its memory is not kept, and no list is searched for it.

Lock: one per shard of the keys, a leaf. The caller of a function with a Shard argument holds its lock.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.containers.hashing cimport mix_hash
from kbroker._core.sync cimport AtomicI64, Mutex

cdef struct Key:                # 128-bit watch key, made by the caller (for example topic id hash and partition)
    int64_t high
    int64_t low

cdef struct Watcher:            # one owner under one key; in the owner's WatcherBlock
    Watcher *next
    Watcher *prev
    WatchList *list             # NULL: in none; guarded by the shard's lock. In a root: the next list of the table slot
    int32_t shard               # fixed before the block is shown to other threads
    int32_t index               # in its block. In a root: bytes between the start of the allocation and the list

cdef struct WatcherBlock:       # all watchers of one owner, one allocation
    void *owner
    void *home                  # the counted Purgatory that the owner belongs to
    int32_t count
    int32_t reserved
    Watcher watchers[1]         # `count` of them

# Both are one aligned cache line: threads that watch and threads that complete use them in turn.
cdef struct WatchList:
    Watcher root                # sentinel of a circular list, in order of watching
    Key key
    int64_t length
    int64_t traces              # of completed operations that were neither checked nor purged since

cdef struct Shard:
    Mutex lock                  # guards all below
    WatchList **table
    int32_t table_size          # power of two, 0 before the first watch
    int32_t lists
    AtomicI64 has_traces        # 0: no list has any; readable without the lock

cdef struct WatchTable:
    Shard *shards
    void *memory                # of the shards
    int32_t shard_count

cdef bint watch_table_init(WatchTable *table, int32_t shards) noexcept nogil       # false: no memory
cdef void watch_table_destroy(WatchTable *table) noexcept nogil                    # every list was removed before

cdef void watcher_block_init(
    WatchTable *table, WatcherBlock *block, void *owner, Key *keys, int32_t count) noexcept nogil
cdef bint watch(Shard *shard, Key *key, Watcher *watcher) noexcept nogil           # false: no memory
cdef bint leave_trace(Shard *shard, Key *key) noexcept nogil                       # like that of a completed operation
# Leave all lists under their locks, each taken once for neighbours in `blocks` under one key; `left`: number of lists
# of each.
cdef void leave_lists(WatchTable *table, WatcherBlock **blocks, int32_t count, int64_t *left) noexcept nogil
cdef WatchList *find_list(Shard *shard, Key *key) noexcept nogil
# Remove the key's traces, and its list if that is then empty.
cdef void clear_traces(Shard *shard, Key *key) noexcept nogil
# Take every watcher of the key, in order, chained by `next`; the number of traces is added to `traces`.
cdef Watcher *take_key(Shard *shard, Key *key, int64_t *traces) noexcept nogil
cdef Watcher *take_all(Shard *shard) noexcept nogil
cdef int64_t watched_in(Shard *shard) noexcept nogil                               # lengths and traces
cdef void purge_traces(WatchTable *table) noexcept nogil                           # takes the locks


cdef inline size_t watcher_block_bytes(int64_t count) noexcept nogil:
    return sizeof(WatcherBlock) + ((count - 1) * sizeof(Watcher) if count > 1 else 0)


cdef inline uint64_t key_hash(Key *key) noexcept nogil:
    return mix_hash(<uint64_t>key.high * <uint64_t>0x9E3779B97F4A7C15 + <uint64_t>key.low)


cdef inline int32_t shard_number(WatchTable *table, Key *key) noexcept nogil:
    return <int32_t>(key_hash(key) % <uint64_t>table.shard_count)


cdef inline void *owner_of(Watcher *watcher) noexcept nogil:
    cdef Watcher *first = watcher - watcher.index
    return (<WatcherBlock *>(<char *>first - (sizeof(WatcherBlock) - sizeof(Watcher)))).owner
