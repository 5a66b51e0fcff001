"""A network loop and its channels: their structs, and the lists that link channels.

Threads: the loop's own, except for ``metadata``, which never changes after registration, and the atomics.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.clock cimport Clock, Waker
from kbroker._core.codec.framing cimport Framing, FrameReader
from kbroker._core.network.poller cimport Poller, kb_event
from kbroker._core.requests.memory_pool cimport Pool, PoolWaiter
from kbroker._core.open_file cimport OpenFile
from kbroker._core.requests.request cimport Request, Session
from kbroker._core.sync cimport AtomicI64, atomic_load_relaxed, atomic_store

cdef extern from "network/socket_io.h" nogil:
    enum:
        KB_AGAIN
        KB_FAILED
        KB_NO_DESCRIPTORS
        KB_WANT_WRITE
        KB_REFUSED
        KB_MAX_PIECES
        KB_HOST_BYTES
    ctypedef struct kb_piece:
        pass
    void kb_piece_set(kb_piece *p, const char *data, int64_t n)
    const char *kb_piece_data(const kb_piece *p)
    int64_t kb_piece_bytes(const kb_piece *p)

cdef struct Channel

cdef struct Transport:          # results: bytes, 0 end of stream, KB_AGAIN, KB_FAILED
    int64_t (*receive)(Channel *channel, char *into, int64_t size_bytes) noexcept nogil
    # Return the number of bytes that the kernel has taken. An encrypting transport that cannot send all of them yet
    # returns KB_AGAIN, is called again with the same bytes in front, and counts them then.
    int64_t (*send)(Channel *channel, kb_piece *pieces, int count, bint more) noexcept nogil
    # NULL: the loop copies by pread and send
    int64_t (*send_file)(Channel *channel, OpenFile *file, int64_t at, int64_t size_bytes) noexcept nogil
    # NULL: ready at once. 1: ready; KB_AGAIN: needs bytes; KB_WANT_WRITE: must wait until it is writable; KB_REFUSED:
    # by this side, because of the peer's bytes; KB_FAILED
    int (*handshake)(Channel *channel) noexcept nogil
    # Return whether a receive would return bytes without reading the socket; NULL: never
    bint (*has_buffered)(Channel *channel) noexcept nogil
    void (*close)(Channel *channel) noexcept nogil

cdef enum CloseReason:
    CLOSE_NONE = 0
    CLOSE_PEER = 1              # end of stream or a failed read or write
    CLOSE_INVALID = 2           # an invalid frame
    CLOSE_EXPIRED = 3           # idle for too long
    CLOSE_FRAME_TIMEOUT = 4     # an incomplete frame
    CLOSE_LOCAL = 5             # requested by its owner
    CLOSE_FAILED_SEND = 6       # Selector: a send while another was in progress
    CLOSE_STATE = 7             # an event that the mute table does not allow
    CLOSE_SESSION = 8           # its authentication has expired

cdef struct Link:
    Link *next
    Link *prev
    Channel *channel            # NULL in a list's head

cdef struct ChannelMetadata:
    int32_t index               # last part of the connection id
    int32_t local_port
    int32_t remote_port
    char local_host[64]
    char remote_host[64]
    const char *listener_name   # outlives the channel

cdef struct Channel:
    int fd
    int interest                # mask registered with the poller
    int mute_state              # MuteState
    int close_reason            # CLOSE_NONE while open
    AtomicI64 is_closed         # the same for other threads: 1 once closed
    bint explicit_mute          # Selector.mute
    bint may_be_readable        # an event came while it was not read: read without the poller
    bint has_invalid_frame      # it received an invalid frame, and is not read any more
    int32_t invalid_size_bytes  # length prefix of the invalid frame
    bint end_of_stream          # the peer has ended its direction; complete frames are still delivered
    bint close_when_sent
    bint wants_write            # the kernel buffer is full
    bint handshaking
    bint authenticating         # frames go to the authenticator one at a time, without reading ahead
    int32_t throttles           # START_THROTTLE without its END_THROTTLE
    int64_t throttled_until_ns  # 0: not throttled, or for an unknown time
    int32_t throttle_kind       # number of the kind, set by the sender of the throttle
    int32_t label_bytes
    char *label                 # owned: the owner's name for the peer; NULL: unknown
    int64_t number
    int64_t opened_ns
    int64_t last_active_ns
    int64_t handed_over_ns      # when the latest frames were handed over
    int64_t bytes_received
    int64_t bytes_sent
    int64_t frame_started_ns
    int64_t network_ns
    Transport *transport
    void *transport_state
    void *owner                 # of the handle
    void *software              # the owner's: software name and version of the client
    Session *session            # counted
    int64_t session_expires_ns  # 0: never
    void *authenticator         # the owner's
    int64_t close_due_ns
    Link lru
    Link registered             # in order of registration, for snapshots
    Link partial_reads          # a frame is incomplete; in order of the frames' starts
    Link memory_muted           # muted because the pool is empty
    Link pending_reads          # to be read or fed in the next poll, regardless of the poller
    Link completed_receives     # complete frames wait for their owner
    Link pending_writes         # responses arrived: write them, then maybe read again
    Link disconnected           # closed; its owner has not processed it yet
    Link failed_auth            # authentication failed: its owner responds and closes at close_due_ns
    # reading
    FrameReader reader
    char *left                  # owned: bytes read and not yet framed
    int64_t left_at
    int64_t left_end
    # in flight: frames that were handed over, and those that returned
    int64_t outstanding         # frames not yet sent, dropped or returned
    int64_t next_sequence
    int64_t send_sequence
    Request *early              # owned: responses ahead of their turn, by sequence
    Request *requeued_first     # owned: handed over, not executed; first in line again when the batch ends
    Request *returned_last
    int32_t returned_count
    Request *send_first         # owned: responses in turn, being written
    Request *send_last
    int32_t prefix_sent         # progress of send_first: prefix bytes, segment, bytes of that segment
    int32_t segment_at
    int64_t segment_sent
    void *observed              # data of its requests' recorder, released with the channel; NULL: none
    void (*release_observed)(void *observed) noexcept nogil
    ChannelMetadata metadata

cdef enum:
    SCRATCH_BYTES = 65536

cdef struct LoopCounters:       # written by the loop's thread, read by any
    AtomicI64 connections_created
    AtomicI64 connections_closed
    AtomicI64 connections_expired
    AtomicI64 frames_expired
    AtomicI64 handshakes        # completed by transports
    AtomicI64 handshakes_refused
    AtomicI64 invalid_frames
    AtomicI64 bytes_received
    AtomicI64 bytes_sent
    AtomicI64 requests
    AtomicI64 responses
    AtomicI64 polls
    AtomicI64 wait_ns           # inside the poller
    AtomicI64 work_ns           # everything else of a poll
    AtomicI64 memory_mutes
    AtomicI64 poll_failures

cdef inline void count(AtomicI64 *counter, int64_t n) noexcept nogil:   # one writer: no locked instruction
    atomic_store(counter, atomic_load_relaxed(counter) + n)

cdef struct EventLoop:
    Poller *poller              # owned
    Clock *clock                # counted
    Pool *pool                  # counted
    Waker waker
    PoolWaiter pool_waiter      # queued while channels are memory_muted
    int64_t passed_over_ns      # time since which memory has been free for another loop; 0: it is not
    Framing framing
    int64_t idle_ns             # negative: never
    int64_t frame_timeout_ns    # 0: never
    int32_t frame_limit         # complete frames a channel may hold before it is read again
    bint exact                  # read exactly one frame at a time
    bint copy_files             # send file regions by pread and send, as a transport without sendfile does
    bint reading                # false: the loop no longer reads
    bint out_of_memory
    int64_t now_ns              # after the last wait
    int64_t busy_since_ns       # when the last wait ended
    int64_t next_idle_check_ns
    uint64_t shuffle_state
    int64_t next_number
    int64_t open_channels
    char *scratch               # owned: SCRATCH_BYTES
    kb_event *events            # owned
    AtomicI64 sleeping          # 1: about to wait or waiting
    bint (*has_mail)(EventLoop *loop) noexcept nogil    # called after ``sleeping`` is set; NULL: never
    void (*closing)(EventLoop *loop, Channel *channel) noexcept nogil   # before its socket is closed; NULL: never
    # A response was sent, or its channel closed: the function takes the request.
    void (*sent)(EventLoop *loop, Channel *channel, Request *request) noexcept nogil
    AtomicI64 snapshot          # LoopSnapshot * requested by another thread; SNAPSHOTS_CLOSED: no more
    void (*on_snapshot)(EventLoop *loop, void *extra) noexcept nogil    # fills ``extra``; NULL: nothing to fill
    Link lru            # all open channels, least recently active first
    Link registered     # the same in order of registration, and cursors of snapshots, which have no channel
    Link partial_reads
    Link memory_muted
    Link pending_reads
    Link completed_receives
    Link pending_writes
    Link disconnected
    LoopCounters counters

cdef inline void list_init(Link *head) noexcept nogil:
    head.next = head
    head.prev = head

cdef inline bint list_empty(Link *head) noexcept nogil:
    return head.next == head

cdef inline bint is_linked(Link *link) noexcept nogil:
    return link.next is not NULL

cdef inline void list_append(Link *head, Link *link) noexcept nogil:
    link.prev = head.prev
    link.next = head
    head.prev.next = link
    head.prev = link

cdef inline void list_remove(Link *link) noexcept nogil:    # no-op when not linked
    if link.next is not NULL:
        link.prev.next = link.next
        link.next.prev = link.prev
        link.next = NULL
        link.prev = NULL

cdef inline void list_append_once(Link *head, Link *link) noexcept nogil:
    if link.next is NULL:
        list_append(head, link)

cdef inline void list_take(Link *from_list, Link *into) noexcept nogil:     # `into`: uninitialized
    list_init(into)
    if list_empty(from_list):
        return
    into.next = from_list.next
    into.prev = from_list.prev
    into.next.prev = into
    into.prev.next = into
    list_init(from_list)
