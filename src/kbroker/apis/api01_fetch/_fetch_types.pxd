"""Structs of the native Fetch handler. A FetchState belongs to one request; see _fetch.pyx for its lifetime."""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t
from kbroker._core.timer.purgatory cimport Operation
from kbroker._core.requests.request cimport Request
from kbroker.log._partition cimport Partition, ReadResult
from kbroker.requests._native_types cimport NativeApisCore

cdef struct FetchPart:
    const char *name            # into the request's payload, or into FetchState.names
    int32_t name_bytes
    const char *id              # 16 bytes, NULL below version 13
    int32_t index
    int32_t leader_epoch
    int64_t offset
    int32_t last_fetched_epoch
    int32_t max_bytes
    Partition *partition        # reference-counted; NULL if unknown, or if only another node may serve it
    bint has_preferred          # the client is directed to the node ``preferred``, and gets no records
    int32_t preferred
    int32_t known_epoch         # leader epoch when the partition was found
    int32_t current_leader      # leader in the response; -1: unknown
    int32_t current_epoch
    int16_t error               # found before reading
    bint is_diverging           # the client has records after the end of its epoch, which is in the response (KIP-595)
    int32_t diverging_epoch
    int64_t diverging_end
    # Name of the topic of ``id`` once a request of the session has found it; NULL: not known. Valid like the names, or
    # while the request holds the topics.
    const char *known_name
    int32_t known_name_bytes
    bint is_unread              # unknown topic or partition: its log was not read
    bint is_included            # is in the response
    bint is_superseded          # a duplicate, followed by another entry of the partition
    ReadResult read

cdef struct FetchState:
    Operation op                # first: the purgatory uses only this
    FetchState *delayed_next     # NativeApisCore.delayed_lock
    FetchState *delayed_prev
    Request *request
    int32_t processor_id        # source of the request, copied because snapshots must not read the request
    int64_t channel_number
    NativeApisCore *native_apis
    int16_t version
    int8_t isolation
    const char *rack            # of the client, in the request's payload; NULL: none
    int64_t rack_bytes
    int32_t replica_id
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int32_t session_id          # of the request
    int32_t session_epoch
    int16_t error               # of the whole response
    int32_t response_session_id
    int32_t throttle_ms         # in the response
    void *session               # counted FetchSession of an incremental response, or of a full response that opens it
    bint is_incremental
    int64_t acl_generation      # generation of the rules by which the parts were allowed
    int64_t charge              # bytes of parts and names charged to the sessions' limit
    int32_t part_count
    FetchPart *parts
    char *names                 # owned copies of topic names and ids, when the parts come from a session
    const char *forgotten       # position of ForgottenTopicsData in the payload, for the session
    int64_t forgotten_bytes
