"""Records of Kafka's internal topics as JSON, in the form of Kafka's tools."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kbroker.common.errors import KafkaError, ProtocolError
from kbroker.decoders.decoded import Decoded, UndecodableError, json_text

if TYPE_CHECKING:
    from kbroker.log.tools.coordinator_records import RecordDecoder

METADATA_TOPIC = "__cluster_metadata"
#: The decoder of each topic, by its name in ``coordinator_records``.
COORDINATOR_TOPICS = {
    "__consumer_offsets": "offsets",
    "__transaction_state": "transaction-log",
    "__share_group_state": "share-group-state",
}
TOPICS = frozenset((*COORDINATOR_TOPICS, METADATA_TOPIC))
FORMAT = "kafka"


@lru_cache
def _decoder(name: str) -> RecordDecoder:
    from kbroker.log.tools.coordinator_records import RecordDecoder

    return RecordDecoder(name)


def record(topic: str, offset: int, key: bytes | None, value: bytes | None) -> tuple[Decoded | None, Decoded | None]:
    """Return key and value of a record of an internal topic, None where the record has null.

    Raises: UndecodableError.
    """
    if topic == METADATA_TOPIC:
        return (None if key is None else Decoded("hex", key.hex())), (None if value is None else _metadata(value))
    if topic not in COORDINATOR_TOPICS:
        raise UndecodableError(f"expected an internal topic of Kafka ({', '.join(sorted(TOPICS))}), got {topic!r}")
    found = _decoder(COORDINATOR_TOPICS[topic])(offset, key, value)
    if isinstance(found["key"], str):
        raise UndecodableError(found["key"])
    payload = None if value is None else Decoded(FORMAT, json_text(found["payload"]), is_json=True)
    return Decoded(FORMAT, json_text(found["key"]), is_json=True), payload


def _metadata(value: bytes) -> Decoded:
    from kbroker.metadata.records.record_json import record_json

    try:
        return Decoded(FORMAT, json_text(record_json(value)), is_json=True)
    except (KafkaError, ProtocolError, ValueError) as error:
        raise UndecodableError(f"not a metadata record: {error}") from None
