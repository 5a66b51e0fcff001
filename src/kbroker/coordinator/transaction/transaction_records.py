"""Records of ``__transaction_state`` in Kafka's formats: Kafka's tools and kbroker can read each other's.

Keys and values begin with an int16 version. Values are of version 1, whose tagged fields (KIP-890) older readers skip.
Source: ``TransactionLogKey.json``, ``TransactionLogValue.json``, ``TransactionLog``.
"""

from __future__ import annotations

from kbroker.common.errors import ProtocolError
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.transaction.transaction_metadata import (
    NO_PLACES,
    NO_PRODUCER_ID,
    TV_0,
    Move,
    TransactionMetadata,
    TransactionState,
)
from kbroker.protocol import codec

_BY_NUMBER = tuple(TransactionState)
KEY_VERSION = 0
VALUE_VERSION = 1


def encode_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id. Raises: ProtocolError if it is longer than 32,767 bytes."""
    return codec.encode_versioned("TransactionLogKey", KEY_VERSION, {"TransactionalId": transactional_id})


def encode_value(move: Move) -> bytes:
    """Encode the state of an id after a move."""
    partitions = None
    if move.state is not TransactionState.EMPTY:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(move.partitions):
            by_topic.setdefault(topic, []).append(partition)
        partitions = [{"Topic": topic, "PartitionIds": ids} for topic, ids in by_topic.items()]
    body = {
        "ProducerId": move.producer_id,
        "PreviousProducerId": move.prev_producer_id,
        "NextProducerId": move.next_producer_id,
        "ProducerEpoch": move.producer_epoch,
        "TransactionTimeoutMs": move.timeout_ms,
        "TransactionStatus": int(move.state),
        "TransactionPartitions": partitions,
        "TransactionLastUpdateTimestampMs": move.last_update_ms,
        "TransactionStartTimestampMs": move.start_ms,
        "ClientTransactionVersion": move.client_version,
    }
    return codec.encode_versioned("TransactionLogValue", VALUE_VERSION, body)


def decode_key(key: bytes) -> str | None:
    """Decode a key; return None for an unknown kind. Raises: ProtocolError if it is truncated or malformed."""
    if codec.key_version(key) != KEY_VERSION:
        return None
    name: str = codec.decode_versioned("TransactionLogKey", key)[1]["TransactionalId"]
    return name


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """Decode the state of an id. Raises: ProtocolError if it is malformed, or has an unknown version or state."""
    version, body = codec.decode_versioned("TransactionLogValue", value)
    if version > VALUE_VERSION:
        raise ProtocolError(f"expected a value of version 0 or 1, found {version}")
    number = body["TransactionStatus"]
    if not TransactionState.EMPTY <= number <= TransactionState.COMPLETE_ABORT:
        raise ProtocolError(f"expected a state from 0 to 5, found {number}")
    found = TransactionMetadata(
        transactional_id,
        body["ProducerId"],
        timeout_ms=body["TransactionTimeoutMs"],
        now_ms=body["TransactionLastUpdateTimestampMs"],
        producer_epoch=body["ProducerEpoch"],
    )
    found.state = _BY_NUMBER[number]
    found.prev_producer_id = body.get("PreviousProducerId", NO_PRODUCER_ID)
    found.next_producer_id = body.get("NextProducerId", NO_PRODUCER_ID)
    found.client_version = body.get("ClientTransactionVersion", TV_0)
    found.start_ms = body["TransactionStartTimestampMs"]
    found.partitions = _places(body["TransactionPartitions"] or ())
    return found


def _places(rows: list[dict[str, object]] | tuple[()]) -> frozenset[TopicPartition]:
    if not rows:
        return NO_PLACES
    return frozenset((str(row["Topic"]), index) for row in rows for index in row["PartitionIds"])  # type: ignore[attr-defined]
