"""Verification of the transactional batches of a Produce, with the help of Python. See _transactional_produce.pxd.

Source: ``ReplicaManager.handleProduceAppend``, ``AddPartitionsToTxnManager``, KIP-890.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

from kbroker._core.codec.bytes cimport load_i16, load_i32, load_i64
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport atomic_load
from kbroker.common._errors cimport (
    CONCURRENT_TRANSACTIONS, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE, NETWORK_EXCEPTION, NONE, NOT_COORDINATOR, NOT_ENOUGH_REPLICAS,
    PRODUCER_FENCED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TRANSACTION_ABORTABLE, UNKNOWN_SERVER_ERROR,
)
from kbroker.log._append cimport partition_start_verification
from kbroker.log._partition cimport partition_is_closed
from kbroker.log._validate cimport is_refused_before_log
from kbroker.log.producers._producer_table cimport NOT_VERIFIED, NO_GUARD
from kbroker.network._kafka_request cimport kafka_request
from kbroker.network.processor._inbound cimport InboundRequest
from kbroker.protocol._batch_format cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BATCH_HEADER_BYTES, MAGIC_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, TRANSACTIONAL_BIT,
)
from kbroker.security.authorizer._acl_table cimport ACL_TOPIC, ACL_WRITE, acl_permits
from kbroker.apis.api00_produce._produce_request cimport ProducePart, ProduceRequest, ProduceTopic
from kbroker.requests._native_types cimport PRODUCE, Handler
from kbroker.replica._topics cimport Topic, topic_table_release, topic_table_retain

from kbroker.coordinator.transaction.add_partitions_to_txn import TransactionPartitions

cdef enum:
    FIRST_ADDING_VERSION = 12       # first version in which a Produce adds its partitions to the transaction
    FIRST_ABORTABLE_VERSION = 11    # first version whose clients support TRANSACTION_ABORTABLE

cdef void free_verdicts(Verdicts *verdicts) noexcept nogil:
    if verdicts != NULL:
        topic_table_release(verdicts.topics)
        free(verdicts)


cdef void release_verdicts(Request *request) noexcept nogil:
    free_verdicts(<Verdicts *>request.state)
    request.state = NULL


cdef inline bint is_transactional(const ProducePart *part) noexcept nogil:
    """Return whether a batch has a producer and a transaction; the append refuses malformed batches."""
    return (part.size_bytes >= BATCH_HEADER_BYTES and part.records[MAGIC_AT] == 2
            and <uint8_t>part.records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT
            and load_i64(part.records + PRODUCER_ID_AT) >= 0)


cdef void set_verdict(VerifiedPart *part, int32_t code, int16_t version) noexcept nogil:
    """Set the coordinator's code in a form that producers of this version support."""
    part.message = NULL
    if code == PRODUCER_FENCED:
        code = INVALID_PRODUCER_EPOCH       # producers then abort and continue
    elif code == TRANSACTION_ABORTABLE and version < FIRST_ABORTABLE_VERSION:
        code = INVALID_TXN_STATE
    if code == INVALID_TXN_STATE:
        part.message = b"Partition was not added to the transaction"
    # Old clients do not retry after these errors, but do after NOT_ENOUGH_REPLICAS, without a metadata request.
    elif code == NETWORK_EXCEPTION:
        part.message = (b"Unable to verify the partition has been added to the transaction. "
                        b"Underlying error: NETWORK_EXCEPTION")
        code = NOT_ENOUGH_REPLICAS
    elif code == COORDINATOR_LOAD_IN_PROGRESS:
        part.message = (b"Unable to verify the partition has been added to the transaction. "
                        b"Underlying error: COORDINATOR_LOAD_IN_PROGRESS")
        code = NOT_ENOUGH_REPLICAS
    elif code == COORDINATOR_NOT_AVAILABLE:
        part.message = (b"Unable to verify the partition has been added to the transaction. "
                        b"Underlying error: COORDINATOR_NOT_AVAILABLE")
        code = NOT_ENOUGH_REPLICAS
    elif code == NOT_COORDINATOR:
        part.message = (b"Unable to verify the partition has been added to the transaction. "
                        b"Underlying error: NOT_COORDINATOR")
        code = NOT_ENOUGH_REPLICAS
    elif code == CONCURRENT_TRANSACTIONS and version < FIRST_ADDING_VERSION:
        part.message = (b"Unable to verify the partition has been added to the transaction. "
                        b"Underlying error: CONCURRENT_TRANSACTIONS")
        code = NOT_ENOUGH_REPLICAS
    part.error = <int16_t>code


cdef int32_t start_verification(Verdicts *verdicts, VerifiedPart *part) noexcept nogil:
    return partition_start_verification(
        part.topic.partitions[part.index], verdicts.producer_id, verdicts.producer_epoch, part.base_sequence,
        verdicts.version >= FIRST_ADDING_VERSION, &part.guard)


cdef int16_t note_producer(Verdicts *verdicts, const char *batch) noexcept nogil:
    """Check that all transactional batches of a request have the first one's producer and epoch; return an error."""
    cdef int64_t producer_id = load_i64(batch + PRODUCER_ID_AT)
    cdef int16_t epoch = load_i16(batch + PRODUCER_EPOCH_AT)
    if verdicts.producer_id < 0:
        verdicts.producer_id = producer_id
        verdicts.producer_epoch = epoch
    return NONE if verdicts.producer_id == producer_id and verdicts.producer_epoch == epoch else (
        INVALID_PRODUCER_ID_MAPPING)


cdef int16_t find_producer(ProduceRequest *parsed, Handler *handler, Request *request, Verdicts *verdicts,
                           int64_t guard) noexcept nogil:
    """Fill in the parts with an existing partition and a transactional batch that the client may write.

    ``guard``: guard of the parts left out, whose partitions may exist by the time the request returns.
    """
    cdef ProduceTopic *data
    cdef ProducePart *part
    cdef VerifiedPart *verified
    cdef const Topic *topic
    cdef int32_t t, _k, at = 0
    cdef int16_t error
    cdef bint is_allowed
    for t in range(parsed.topic_count):
        data = &parsed.topics[t]
        topic = data.topic
        is_allowed = topic == NULL or handler.native_apis.acls == NULL or acl_permits(
            handler.native_apis.acls, handler.decisions, request, ACL_WRITE, ACL_TOPIC, topic.name, topic.name_bytes)
        for _k in range(data.part_count):
            part = &parsed.parts[at]
            verified = &verdicts.parts[at]
            at += 1
            verified.guard = guard
            if part.is_superseded or topic == NULL or not is_allowed:
                continue
            if part.index < 0 or part.index >= topic.partition_count:
                continue
            if topic.partitions[part.index] == NULL or partition_is_closed(topic.partitions[part.index]):
                continue
            if not is_transactional(part) or is_refused_before_log(part.records, part.size_bytes, verdicts.version):
                continue
            error = note_producer(verdicts, part.records)
            if error != NONE:
                return error
            verified.topic = topic
            verified.index = part.index
            verified.base_sequence = load_i32(part.records + BASE_SEQUENCE_AT)
    return NONE


cdef void start_all(Verdicts *verdicts, bint is_first) noexcept nogil:
    """Begin the verification of each partition, or later only of those that the coordinator verifies."""
    cdef VerifiedPart *part
    cdef int32_t i, error
    for i in range(verdicts.part_count):
        part = &verdicts.parts[i]
        if part.topic == NULL or not (is_first or part.is_pending):
            continue
        error = start_verification(verdicts, part)
        verdicts.asked_count -= part.is_pending
        part.is_pending = error == NONE and part.guard != NO_GUARD
        verdicts.asked_count += part.is_pending
        part.error = <int16_t>error
        part.message = NULL
        if part.is_pending:               # until the result arrives
            set_verdict(part, COORDINATOR_NOT_AVAILABLE, verdicts.version)


cdef Verification verify_produce(Handler *handler, Request *request, ProduceRequest *parsed, Verdicts **verdicts,
                                 int16_t *error) noexcept nogil:
    cdef Verdicts *fresh
    cdef bint verifies
    if request.state != NULL:           # the request returns from Python
        verdicts[0] = <Verdicts *>request.state
        return VERIFY_DONE
    if parsed.transactional_id == NULL:
        error[0] = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return VERIFY_REFUSED
    fresh = <Verdicts *>calloc(1, sizeof(Verdicts) + <size_t>parsed.part_count * sizeof(VerifiedPart))
    if fresh == NULL:
        error[0] = UNKNOWN_SERVER_ERROR
        return VERIFY_REFUSED
    fresh.parts = <VerifiedPart *>(fresh + 1)
    fresh.part_count = parsed.part_count
    fresh.version = kafka_request(request).api_version
    fresh.producer_id = -1
    fresh.transactional_id_at = parsed.transactional_id - request.payload
    fresh.transactional_id_bytes = parsed.transactional_id_bytes
    fresh.topics = topic_table_retain(handler.topics)
    verifies = fresh.version >= FIRST_ADDING_VERSION or atomic_load(&handler.native_apis.verifies_transactions) != 0
    error[0] = find_producer(parsed, handler, request, fresh, NO_GUARD if verifies else NOT_VERIFIED)
    if error[0] != NONE:
        free_verdicts(fresh)
        return VERIFY_REFUSED
    if verifies:
        start_all(fresh, True)
    if fresh.asked_count == 0:
        verdicts[0] = fresh
        return VERIFY_DONE
    request.state = <void *>fresh
    request.release_state = release_verdicts
    return VERIFY_ASK


# ------------------------------------------------------------------------------------------------ requests from Python

cdef Verdicts *verdicts_of(InboundRequest request) except? NULL:
    request.check_open()
    if request.request.release_state != release_verdicts or kafka_request(request.request).api_key != PRODUCE:
        return NULL
    return <Verdicts *>request.request.state


def pending_partitions(InboundRequest request not None):
    cdef Verdicts *verdicts = verdicts_of(request)
    cdef VerifiedPart *part
    cdef const char *name
    cdef int32_t i
    if verdicts == NULL:
        return None
    with nogil:
        start_all(verdicts, False)
    name = request.request.payload + verdicts.transactional_id_at
    places = []
    for i in range(verdicts.part_count):
        part = &verdicts.parts[i]
        if part.is_pending:
            places.append((part.topic.name[:part.topic.name_bytes].decode("utf-8", "surrogateescape"), part.index))
    text = name[:verdicts.transactional_id_bytes].decode("utf-8", "surrogateescape")
    return TransactionPartitions(text, verdicts.producer_id, verdicts.producer_epoch, tuple(places))


def end_verification(InboundRequest request not None, dict errors not None):
    cdef Verdicts *verdicts = verdicts_of(request)
    cdef VerifiedPart *part
    cdef int32_t i, code
    if verdicts == NULL:
        return
    for i in range(verdicts.part_count):
        part = &verdicts.parts[i]
        if not part.is_pending:
            continue
        place = (part.topic.name[:part.topic.name_bytes].decode("utf-8", "surrogateescape"), part.index)
        code = errors.get(place, COORDINATOR_NOT_AVAILABLE)
        set_verdict(part, code, verdicts.version)
