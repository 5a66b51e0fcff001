"""Valid requests of every API and version with names, ids and records that exist in a broker: a corpus to mutate."""

import random
import uuid
from typing import Any

from kbroker.protocol import codec
from tests.support import wire
from tests.support.wire_bodies import message_of, random_body

TOPICS = ["fuzzed", "fuzzed-compacted"]
GROUPS = ["g", "classic", "consumer"]
IDS = ["", "t", "t2"]
SMALL = [0, 0, 0, 1, 2, 3]
# The broker would allow more; a thousand partitions in each of a million requests are slow but not wrong.
HARMLESS = {"PartitionCount": 2, "NumPartitions": 2, "Count": 2, "SessionTimeoutMs": 6000, "RebalanceTimeoutMs": 6000}


def batches(rng: random.Random) -> bytes:
    """Return a batch of records, sometimes of a producer, in a transaction, or compressed by another program."""
    values = [rng.randbytes(rng.choice([0, 1, 10, 100])) for _ in range(rng.choice([1, 1, 2, 5]))]
    kind = rng.randrange(4)
    if kind == 0:
        return wire.batch(values, attributes=rng.choice([0, 1, 2, 3, 4, 8, 16, 32]))
    if kind == 1:
        return wire.batch(values, records=wire.record(0, values[0], header_count=rng.randrange(3)))
    return wire.batch(values)


class Corpus:
    """Frames of the given APIs, drawn from a seed. Args: ``topic_ids``: ids of the topics that exist."""

    def __init__(self, seed: int, topic_ids: list[uuid.UUID]) -> None:
        self._rng = random.Random(seed)
        self._topic_ids = topic_ids

    def frames(self, keys: list[int], each: int) -> list[bytes]:
        """Return frames without their length prefix: ``each`` of every version of every API."""
        versions = [(key, *codec.api(key).request_versions) for key in keys]
        return [
            self.frame(key, version)
            for key, first, last in versions
            for version in range(first, last + 1)
            for _ in range(each)
        ]

    def frame(self, key: int, version: int) -> bytes:
        """Return one request."""
        message = message_of(codec.api(key), "request")
        body = self._likely(random_body(self._rng, message, version))
        if not isinstance(body, dict):
            raise TypeError(body)
        correlation = self._rng.randrange(1 << 31)
        client = self._rng.choice([None, "fuzz", "fuzz-2"])
        return bytes(codec.encode_request_frame(key, version, correlation, client, body)[4:])

    def _likely(self, value: Any, name: str = "") -> Any:
        """Return the value of a field, or a value that is likely to exist in the broker."""
        rng = self._rng
        if isinstance(value, dict):
            return {key: self._likely(one, key) for key, one in value.items()}
        if isinstance(value, list):
            return [self._likely(one, name) for one in value]
        if name in HARMLESS and isinstance(value, int):
            return min(value, HARMLESS[name])
        if isinstance(value, bool) or value is None or rng.random() < 0.1:
            return value
        if isinstance(value, str):
            if "Topic" in name or name in ("Name", "ResourceName", "Topics"):
                return rng.choice(TOPICS)
            return rng.choice(GROUPS if "Group" in name else [*IDS, value])
        if isinstance(value, uuid.UUID):
            return rng.choice(self._topic_ids)
        if isinstance(value, int):
            return rng.choice([value, *SMALL])
        if isinstance(value, bytes) and name == "Records":
            return batches(rng)
        return value
