"""Storage of producer states: an open-addressing table of entries, two lists of transactions, and verifications.

Linear probing, deletion by shifting back; pointers keyed by producer id. The transactions are sorted by first offset:
the ongoing ones, and the ended ones whose marker is not below the high watermark yet.

A verification belongs to a producer whose next transactional batch is being verified: Kafka's VerificationStateEntry
(KIP-890). The table keeps a guard from the request to the transaction coordinator until the append. A marker, or the
first batch of the transaction, removes it, so that an append that was verified for an older transaction is refused.

Lock: the partition's append lock guards every call.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from kbroker._core.containers.hash_table cimport HashNode, HashTable
from kbroker._core.containers.hashing cimport mix_hash
from kbroker._core.containers.linked_list cimport Chain, ChainNode

cdef enum:
    REMEMBERED_BATCHES = 5
    SNAPSHOT_CORRUPT = -10006

cdef struct RememberedBatch:
    int32_t last_sequence
    int32_t offset_delta
    int64_t last_offset
    int64_t timestamp_ms

cdef struct Txn:                    # in one of the two lists; owned by the list
    ChainNode node                  # first
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset             # offset of the end marker; -1 while ongoing

cdef struct Entry:
    int64_t producer_id
    int16_t epoch                   # -1: none known
    int32_t coordinator_epoch       # -1: no marker yet
    int64_t last_timestamp_ms
    Txn *txn                        # the ongoing transaction, owned by state.ongoing, or NULL
    int32_t batch_count
    RememberedBatch batches[REMEMBERED_BATCHES]     # oldest first

cdef struct ProducerState:
    Entry **slots
    int64_t capacity                # power of two
    int64_t count
    uint64_t seed                   # secret, since clients may send any producer id
    Chain ongoing                   # of Txn, sorted by first_offset, as is unreplicated
    Chain unreplicated
    Entry *spare_entry              # allocated by a check for the apply that follows
    Txn *spare_txn
    HashTable verifications     # of Verification

cdef inline uint64_t producer_hash(const ProducerState *state, int64_t producer_id) noexcept nogil:
    return mix_hash(state.seed ^ <uint64_t>producer_id)


cdef inline int64_t find_slot(const ProducerState *state, Entry **slots, int64_t capacity,
                              int64_t producer_id) noexcept nogil:
    """Return the slot of the producer, or the free slot where it belongs."""
    cdef int64_t mask = capacity - 1
    cdef int64_t i = <int64_t>(producer_hash(state, producer_id) & <uint64_t>mask)
    while slots[i] != NULL and slots[i].producer_id != producer_id:
        i = (i + 1) & mask
    return i


cdef inline Entry *find(ProducerState *state, int64_t producer_id) noexcept nogil:
    return state.slots[find_slot(state, state.slots, state.capacity, producer_id)]


cdef inline bint is_expired(bint has_txn, int64_t last_timestamp_ms, int64_t now_ms,
                            int64_t expiration_ms) noexcept nogil:
    # This form cannot overflow on a hostile timestamp (near the minimum or maximum of int64).
    if has_txn or expiration_ms < 0:
        return False
    if last_timestamp_ms < 0:
        last_timestamp_ms = -1
    if now_ms < last_timestamp_ms:
        return False
    return now_ms - last_timestamp_ms >= expiration_ms


# Reserve the memory that one apply may need: a slot, an entry, a transaction.
cdef bint reserve(ProducerState *state, bint is_transactional) noexcept nogil
cdef Entry *add_entry(ProducerState *state, int64_t producer_id) noexcept nogil              # after reserve
cdef void remove_slot(ProducerState *state, int64_t hole) noexcept nogil
cdef void remember(Entry *entry, int32_t last_sequence, int64_t last_offset, int32_t offset_delta,
                   int64_t timestamp_ms) noexcept nogil
cdef void txn_insert(Chain *txns, Txn *txn) noexcept nogil
cdef void txn_remove(Chain *txns, Txn *txn) noexcept nogil       # frees the transaction
# After reserve with is_transactional.
cdef void txn_open(ProducerState *state, Entry *entry, int64_t first_offset) noexcept nogil
cdef ProducerState *table_new() noexcept nogil
cdef void table_clear(ProducerState *state) noexcept nogil
cdef void table_free(ProducerState *state) noexcept nogil

# Return the producers in Kafka's snapshot format, version 1: malloc'ed bytes; NULL: out of memory, or over 2 GiB.
cdef char *producer_state_encode_snapshot(ProducerState *state, int64_t *size_bytes) noexcept nogil
# Replace the state by the file's; expired producers are left out. 0, SNAPSHOT_CORRUPT (state unchanged) or -errno.
cdef int32_t producer_state_load_snapshot(ProducerState *state, const char *path, int64_t now_ms,
                                          int64_t expiration_ms) noexcept nogil

cdef enum:
    NO_GUARD = 0                # the transaction is open here: no verification
    NOT_VERIFIED = -1           # transaction.partition.verification.enable=false: the append needs no verification

cdef struct Verification:
    HashNode node               # first
    int64_t producer_id
    int64_t guard               # above 0, unique in the process
    int64_t timestamp_ms        # start of the transaction
    int32_t lowest_sequence     # lowest base sequence so far: a batch with a higher one must not overtake it
    int16_t epoch
    bint bumps_epochs           # each of the client's transactions has its own epoch (transaction version 2)

cdef Verification *verification_find(ProducerState *state, int64_t producer_id) noexcept nogil
# Return the verification in progress, with its lowest sequence updated, or a new one; NULL: out of memory.
cdef Verification *verification_begin(ProducerState *state, int64_t producer_id, int16_t epoch, int32_t sequence,
                                      bint bumps_epochs, int64_t now_ms) noexcept nogil
cdef void verification_end(ProducerState *state, int64_t producer_id) noexcept nogil
cdef void verification_expire(ProducerState *state, int64_t now_ms, int64_t expiration_ms) noexcept nogil
cdef void verification_clear(ProducerState *state) noexcept nogil
