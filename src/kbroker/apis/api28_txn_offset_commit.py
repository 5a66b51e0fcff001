"""TxnOffsetCommit: stores the offsets that a group has read, as a part of a transaction (KIP-98, KIP-447, KIP-890)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import java_length
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import OFFSETS_TOPIC, TopicPartition
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.internal_topic import TransactionalProducer
from kbroker.coordinator.transaction.add_partitions_to_txn import TransactionPartitions
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import partition_row
from kbroker.security.authorizer import checks

logger = get_logger(__name__)

FIRST_WITHOUT_ADD_OFFSETS = 5  # first version in which the commit itself adds the group's partition to the transaction
FIRST_WITH_ABORTABLE = 4
FIRST_WITH_LOADING = 2
MAX_QUESTIONS = 4  # limit of the requests to the transaction coordinator for one commit

Rows = dict[str, list[tuple[int, Errors]]]  # by topic: partition and error


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body | None:
    """Write offsets that count when the transaction commits, once the transaction is known to be open.

    Each partition has its own code. None: the transaction coordinator must be consulted, and the response comes later.
    """
    ctx.auth.require(request, checks.TXN_OFFSET_COMMIT_TRANSACTIONAL_ID, body["TransactionalId"])
    ctx.auth.require(request, checks.TXN_OFFSET_COMMIT_GROUP, body["GroupId"])
    commit = _Commit(ctx, body, request)
    if not commit.known:
        return commit.response(Errors.NONE)
    try:
        error = commit.verify()
    except KafkaError as failed:
        error = failed.error
    return None if error is None else commit.response(error)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    rows: Rows = {}
    for topic in body["Topics"]:
        rows.setdefault(topic["Name"], []).extend((row["PartitionIndex"], error) for row in topic["Partitions"])
    return _response(rows)


class _Offset(NamedTuple):
    """An offset of a partition that exists, with its error or NONE."""

    place: TopicPartition
    value: CommittedOffset
    error: Errors


class _Commit:
    """State of one request. Threads: one at a time."""

    def __init__(self, ctx: ApiContext, body: Body, request: RequestContext) -> None:
        self._ctx = ctx
        self._body = body
        self._request = request
        self._guard = -1
        self._unknown: Rows = {}
        self.known: list[_Offset] = []
        limit = ctx.config.integer("offset.metadata.max.bytes")
        now_ms = ctx.clock.wall_ms()
        allowed = ctx.auth.allowed(request, checks.TXN_OFFSET_COMMIT, (topic["Name"] for topic in body["Topics"]))
        for topic in body["Topics"]:
            name = topic["Name"]
            view = ctx.topics.get(name)
            for row in topic["Partitions"]:
                index, metadata = row["PartitionIndex"], row["CommittedMetadata"] or ""
                if name not in allowed:
                    self._unknown.setdefault(name, []).append((index, checks.TXN_OFFSET_COMMIT.error))
                    continue
                if view is None or not 0 <= index < len(view.partitions):
                    self._unknown.setdefault(name, []).append((index, Errors.UNKNOWN_TOPIC_OR_PARTITION))
                    continue
                error = Errors.OFFSET_METADATA_TOO_LARGE if java_length(metadata) > limit else Errors.NONE
                value = CommittedOffset(row["CommittedOffset"], row.get("CommittedLeaderEpoch", -1), metadata, now_ms)
                self.known.append(_Offset((name, index), value, error))

    def verify(self) -> Errors | None:
        """Commit once the transaction is known to be open, and return the error; None: the response comes later.

        Raises: KafkaError.
        """
        body = self._body
        producer_id, producer_epoch = body["ProducerId"], body["ProducerEpoch"]
        adds = self._request.api_version >= FIRST_WITHOUT_ADD_OFFSETS
        if not body["GroupId"]:
            return Errors.INVALID_GROUP_ID
        groups = self._ctx.groups
        if producer_id < 0 or producer_epoch < 0:  # no log has such a producer: the coordinator returns the error
            return self._refusal((OFFSETS_TOPIC, groups.runtime.index_of(body["GroupId"])))
        if not adds and not self._ctx.config.boolean("transaction.partition.verification.enable"):
            return self._commit()
        index, self._guard = groups.offsets.start_verification(body["GroupId"], producer_id, producer_epoch, adds)
        if self._guard == 0:  # the transaction already has offsets there
            return self._commit()
        place = (OFFSETS_TOPIC, index)
        if adds:
            self._add(place, MAX_QUESTIONS)
            return None
        return self._verified(self._ctx.add_partitions_to_txn.verify(self._partitions_of(place))[place])

    def _refusal(self, place: TopicPartition) -> Errors:
        """Return the error for a producer that is unknown to the transaction coordinator."""
        found = self._ctx.add_partitions_to_txn.verify(self._partitions_of(place))
        return self._error_for_client(found[place]) or Errors.INVALID_PRODUCER_EPOCH

    def _partitions_of(self, place: TopicPartition) -> TransactionPartitions:
        body = self._body
        return TransactionPartitions(body["TransactionalId"], body["ProducerId"], body["ProducerEpoch"], [place])

    def _add(self, place: TopicPartition, attempts: int) -> None:
        """Have the transaction coordinator add the partition, then respond.

        Meanwhile a marker of an earlier epoch of the producer may be written, which ends this verification too.
        The new verification is then repeated, ``attempts`` times at most.
        """

        def added(errors: Mapping[TopicPartition, Errors]) -> None:
            try:
                error = errors[place]
                if error is Errors.NONE and attempts > 1 and self._is_verification_over():
                    self._add(place, attempts - 1)
                    return
                error = self._verified(error)
            except KafkaError as failed:
                error = failed.error
            except Exception:  # on a thread of the coordinator, which must continue
                logger.exception("TxnOffsetCommit of group %s failed", self._body["GroupId"])
                error = Errors.UNKNOWN_SERVER_ERROR
            self._request.complete(self.response(error))

        self._ctx.add_partitions_to_txn.add(self._partitions_of(place), added)

    def _is_verification_over(self) -> bool:
        """Return whether a marker was written since the guard was taken, and renew the guard. Raises: KafkaError."""
        body, before = self._body, self._guard
        _, self._guard = self._ctx.groups.offsets.start_verification(
            body["GroupId"], body["ProducerId"], body["ProducerEpoch"], True
        )
        return self._guard not in (0, before)

    def _verified(self, error: Errors) -> Errors:
        return self._commit() if error is Errors.NONE else self._error_for_client(error)

    def _error_for_client(self, error: Errors) -> Errors:
        if error is Errors.PRODUCER_FENCED:
            return Errors.INVALID_PRODUCER_EPOCH  # the code that producers expect from a partition
        if error is Errors.TRANSACTION_ABORTABLE and self._request.api_version < FIRST_WITH_ABORTABLE:
            return Errors.INVALID_TXN_STATE
        return error

    def _commit(self) -> Errors:
        """Write the offsets that have no error, and return NONE. Raises: KafkaError."""
        body = self._body
        self._ctx.groups.offsets.commit_transactional(
            body["GroupId"],
            body.get("MemberId", ""),
            body.get("GroupInstanceId"),
            body.get("GenerationIdOrMemberEpoch", -1),
            TransactionalProducer(body["ProducerId"], body["ProducerEpoch"], self._guard),
            {one.place: one.value for one in self.known if one.error is Errors.NONE},
            self._request.api_version,
        )
        return Errors.NONE

    def response(self, error: Errors) -> Body:
        """Return the response: unknown topics first, as in Kafka. ``error``: that of all other offsets."""
        if error is Errors.COORDINATOR_LOAD_IN_PROGRESS and self._request.api_version < FIRST_WITH_LOADING:
            error = Errors.COORDINATOR_NOT_AVAILABLE  # a client before 2.0 fails on the other code (KAFKA-7296)
        rows = {name: list(found) for name, found in self._unknown.items()}
        for one in self.known:
            name, index = one.place
            rows.setdefault(name, []).append((index, one.error if error is Errors.NONE else error))
        return _response(rows)


def _response(rows: Rows) -> Body:
    topics = [{"Name": name, "Partitions": [partition_row(*one) for one in found]} for name, found in rows.items()]
    return {"Topics": topics}
