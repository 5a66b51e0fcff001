"""The latest verdicts of a broker's quotas, in a ring that is made with the first one; and how many there were.

Lock: ``VerdictRing.lock``, a leaf. Where nothing is throttled nobody comes here.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport AtomicI64, Mutex
from kbroker.server.quota._quota_events cimport QuotaEvent, VerdictEvent

cdef enum:
    VERDICT_SLOTS = 1024
    VERDICT_TEXT_BYTES = 128    # a longer name is cut
    VERDICT_HOST_BYTES = 64
    QUOTA_TYPES = 5

cdef struct VerdictSlot:
    VerdictEvent verdict
    int16_t api_key             # -1: none, a connection
    int32_t user_bytes
    int32_t client_tag_bytes
    int32_t principal_bytes
    int32_t client_id_bytes
    int32_t local_port
    int32_t remote_port
    int32_t processor_id
    int32_t connection_index    # -1: no connection yet
    char user[VERDICT_TEXT_BYTES]
    char client_tag[VERDICT_TEXT_BYTES]
    char principal[VERDICT_TEXT_BYTES]
    char client_id[VERDICT_TEXT_BYTES]
    char local_host[VERDICT_HOST_BYTES]
    char remote_host[VERDICT_HOST_BYTES]

cdef struct VerdictRing:
    Mutex lock
    VerdictSlot *slots          # made with the first verdict
    int64_t first               # number of the oldest that is kept
    int64_t next                # number of the next one
    AtomicI64 delays[QUOTA_TYPES]
    AtomicI64 refusals[QUOTA_TYPES]

cdef void verdicts_init(VerdictRing *ring) noexcept nogil
cdef void verdicts_destroy(VerdictRing *ring) noexcept nogil
# The verdicts that the request's quota_events has got since the last call.
cdef void publish_verdicts(VerdictRing *ring, Request *request) noexcept nogil
# One without a request: of an address, or of all of them (NULL).
cdef void publish_connection(VerdictRing *ring, const VerdictEvent *verdict, const char *address) noexcept nogil
# (totals by type, the verdicts kept as tuples, oldest first); ``takes`` empties the ring
cdef list verdict_rows(VerdictRing *ring, bint takes)
