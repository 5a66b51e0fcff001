"""The counters of a handler thread's latest clients, so that an enforced quota takes no lock but the sensor's.

Threads: a cache belongs to one handler thread. Valid for a generation of its manager: a changed quota ends it.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.requests.request cimport Request, Session
from kbroker.common._quota_counter cimport KINDS
from kbroker.server.quota._counters cimport ClientSensors, QuotaManager

cdef enum:
    CACHED_CLIENTS = 64         # per handler thread, a power of two
    CACHED_ID_BYTES = 64        # a longer client id is looked up each time
    COUNTS_AT_ONCE = 1024       # of a counter taken by a handler thread, to be given to its requests one by one

cdef struct CachedClient:       # of one handler thread
    Session *session            # counted; NULL: free
    int32_t client_id_bytes
    char client_id[CACHED_ID_BYTES]
    int64_t generation[KINDS]
    ClientSensors *sensors[KINDS]    # counted
    int64_t spare_counts[KINDS]      # more counts on them

cdef struct ClientCache:
    CachedClient *latest             # what sensors_of_request has found last
    CachedClient clients[CACHED_CLIENTS]

cdef ClientCache *client_cache_new() noexcept nogil
cdef void client_cache_free(ClientCache *cache) noexcept nogil
# The counter of a request's client; `cache` (NULL: none) is the calling thread's own. Borrowed from the cache where it
# is kept there, for as long as no other client is looked up; is_counted: the count is the caller's.
cdef ClientSensors *sensors_of_request(QuotaManager *manager, ClientCache *cache, Request *request, int64_t now_ms,
                                       bint *is_counted) noexcept nogil
# A count on what sensors_of_request has just returned, for the request: from the cache's own where it is kept there.
cdef void count_for_request(QuotaManager *manager, ClientCache *cache, ClientSensors *sensors,
                            bint is_counted) noexcept nogil
