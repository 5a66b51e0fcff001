"""One fetch session: the partitions that its client fetches, in the order of service, and what it was last told.

Lock: ``FetchSession.lock``, held by the caller of everything here but ``session_release``.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.containers.linked_list cimport Chain, ChainNode
from kbroker._core.containers.hash_table cimport HashNode, HashTable
from kbroker._core.sync cimport AtomicI64, Mutex
from kbroker.server.apis.api01_fetch._fetch_types cimport FetchPart, FetchState

cdef enum:
    MOST_SESSION_BYTES = 134217728  # of all sessions and copies waiting fetches hold; beyond, clients go without

cdef struct SessionPart:
    HashNode node               # first
    ChainNode in_order          # second: order of service, what returned data goes to the end
    char *name                  # behind the struct
    int32_t name_bytes
    bint by_id
    char id[16]
    bint was_known              # its topic was there once: from then on its absence is 3, as in Kafka, not 100
    int32_t index
    int32_t leader_epoch
    int32_t last_fetched_epoch
    int32_t max_bytes
    int64_t offset
    int64_t reported_high_watermark
    int64_t reported_log_start
cdef struct FetchSession:
    HashNode node               # first; SessionCache.lock, and so are id and the two after by_id
    AtomicI64 refs
    AtomicI64 *bytes            # of its cache, which outlives it: what partitions of sessions, and copies of them, take
    uint64_t hash_seed
    int32_t id
    bint by_id
    bint is_closed
    int64_t last_used_ms
    Mutex lock                  # guards the rest
    int32_t epoch
    HashTable parts
    int64_t name_total          # bytes of all names and ids
    Chain in_order              # of parts

# Without an id and partitions; one count. NULL: memory is out.
cdef FetchSession *fetch_session_new(AtomicI64 *bytes, uint64_t hash_seed, bint by_id) noexcept nogil
cdef void fetch_session_release(FetchSession *session) noexcept nogil
cdef SessionPart *find_part(FetchSession *session, const char *name, int32_t name_bytes, const char *topic_id,
                            int32_t index) noexcept nogil
# Adds a partition, or renews what is asked of it. False: memory is out, or sessions have taken their share.
cdef bint put_part(FetchSession *session, FetchPart *asked) noexcept nogil
cdef void serve_last(FetchSession *session, SessionPart *part) noexcept nogil   # it goes to the end of the order
# Applies ForgottenTopicsData, which the parser has already found well formed.
cdef void forget_parts(FetchSession *session, FetchState *state) noexcept nogil
# Replaces the request's parts by copies of all of the session's. False: no memory for them.
cdef bint fill_state(FetchSession *session, FetchState *state) noexcept nogil
