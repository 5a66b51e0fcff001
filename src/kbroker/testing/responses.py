"""Responses that refuse a request with an error, as bodies for the codec.

APIs that Python serves have their own ``failure``; the others are served natively and never fail as a whole there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from kbroker.common.errors import Errors
from kbroker.handlers.api_table import ApiEntry, ErrorResponseBuilder
from kbroker.requests.context import Body

PRODUCE, FETCH = 0, 1
FETCH_SESSIONS_FROM = 7


def error_response_of(entry: ApiEntry) -> ErrorResponseBuilder | None:
    """Return the function that refuses a whole request of this API; None if a request cannot be refused."""
    return entry.failure if entry.failure is not None else _NATIVE.get(entry.key)


def _produce(body: Body, error: Errors, request: object) -> Body:
    """Return every partition with the same error; nothing was appended."""
    topics = []
    for topic in body["TopicData"]:
        rows = [
            {"Index": row["Index"], "ErrorCode": int(error), "BaseOffset": -1, "ErrorMessage": error.message}
            for row in topic["PartitionData"]
        ]
        topics.append({"Name": topic["Name"], "TopicId": topic["TopicId"], "PartitionResponses": rows})
    return {"Responses": topics}


def _fetch(body: Body, error: Errors, request: object) -> Body:
    """Return every partition with the same error, outside any session."""
    topics = []
    for topic in body["Topics"]:
        rows = [
            {"PartitionIndex": row["Partition"], "ErrorCode": int(error), "HighWatermark": -1, "Records": b""}
            for row in topic["Partitions"]
        ]
        topics.append({"Topic": topic["Topic"], "TopicId": topic["TopicId"], "Partitions": rows})
    return {"Responses": topics}


_NATIVE: dict[int, ErrorResponseBuilder] = {PRODUCE: _produce, FETCH: _fetch}


def continues_session(key: int, version: int, body: Body) -> bool:
    """Return whether this is a Fetch that names only the changes of its session, and thus not all topics."""
    return key == FETCH and version >= FETCH_SESSIONS_FROM and body["SessionId"] != 0 and body["SessionEpoch"] > 0


def end_session() -> Body:
    """Return the response of a broker that has dropped the session: the client then fetches with all its partitions."""
    return {"ErrorCode": int(Errors.FETCH_SESSION_ID_NOT_FOUND)}


def wants_no_response(key: int, body: Body) -> bool:
    """Return whether the client will not read a response (Produce with acks=0)."""
    return key == PRODUCE and body["Acks"] == 0


_NOT_TOPICS = frozenset(("Configs", "Protocols", "Assignments", "Entries", "Members"))  # contain names of other things


def topics_in(body: Body, name_of: Callable[[UUID], str | None]) -> Iterator[str]:
    """Yield the names of the topics of a request, given by name or by id, at any depth."""
    for field, value in body.items():
        if field in ("Topic", "Name", "TopicName", "TopicNames") and value:
            yield from value if isinstance(value, list) else (str(value),)
        elif field == "ResourceName" and body.get("ResourceType") == 2:
            yield str(value)
        elif field == "TopicId" and isinstance(value, UUID) and value.int:
            name = name_of(value)
            if name is not None:
                yield name
        elif field not in _NOT_TOPICS and isinstance(value, list) and value and isinstance(value[0], dict):
            for item in value:
                yield from topics_in(item, name_of)
