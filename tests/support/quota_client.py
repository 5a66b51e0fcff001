"""A connection that asks by our codec, one response at a time, and can tell that it is being kept waiting."""

from __future__ import annotations

import select
from typing import Any

from kbroker.protocol import codec
from tests.support import wire
from tests.support.wire import Connection

Body = dict[str, Any]


class QuotaClient(Connection):
    """One client id on one connection."""

    def __init__(self, bootstrap: str, client_id: str | None = "client", timeout: float = 10.0) -> None:
        super().__init__(bootstrap, timeout)
        self.client_id = client_id
        self.asked: list[tuple[int, int]] = []

    def begin(self, name: str, version: int, body: Body) -> int:
        """Send a request; return its size as quotas count it, without the four bytes of its length."""
        key = codec.api_by_name(name).key
        frame = codec.encode_request_frame(key, version, len(self.asked), self.client_id, body)
        self.send_raw(frame)
        self.asked.append((key, version))
        return len(frame) - 4

    def end(self, number: int = -1) -> Body:
        """Return the answer to a request that was sent: the latest, or the one with this number."""
        self.response = self.receive()
        number = number % len(self.asked)
        key, version = self.asked[number]
        correlation_id, body = codec.decode_response_frame(key, version, self.response)
        assert correlation_id == number
        return body

    def call(self, name: str, version: int, body: Body) -> Body:
        self.begin(name, version, body)
        return self.end()

    @property
    def has_response(self) -> bool:
        """Whether something has arrived."""
        poll = select.poll()  # select ends at descriptor 1023
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def produce(self, topic: str, value_bytes: int, *, acks: int = 1, version: int = 7) -> int:
        """Send one record of this size; return the size of the request."""
        return self.begin("Produce", version, produce_body(topic, wire.batch([b"x" * value_bytes]), acks))

    def fetch(
        self, topic: str, *, version: int = 11, offset: int = 0, session: tuple[int, int] = (0, -1), **more: Any
    ) -> None:
        """Send a fetch of partition 0; ``session``: its id and epoch; an incremental one asks for nothing new."""
        self.begin("Fetch", version, fetch_body(topic, offset, session, **more))


def produce_body(topic: str, batch: bytes, acks: int = 1) -> Body:
    return {
        "Acks": acks,
        "TimeoutMs": 30_000,
        "TopicData": [{"Name": topic, "PartitionData": [{"Index": 0, "Records": batch}]}],
    }


def fetch_body(
    topic: str,
    offset: int,
    session: tuple[int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
) -> Body:
    partition = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
    topics = [{"Topic": topic, "Partitions": [partition]}] if session[1] <= 0 else []
    return {
        "ReplicaId": -1,
        "MaxWaitMs": max_wait_ms,
        "MinBytes": min_bytes,
        "MaxBytes": max_bytes,
        "SessionId": session[0],
        "SessionEpoch": session[1],
        "Topics": topics,
    }
