"""WriteTxnMarkers: writes markers for a coordinator or an administrator (``kafka-transactions abort``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kbroker.common.errors import Errors
from kbroker.coordinator.internal_topic import EndMarker
from kbroker.requests.cluster import led_partition
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import partition_row
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Write each marker to each of its partitions; the markers of a producer id share one row."""
    if not ctx.auth.allows(request, checks.WRITE_TXN_MARKERS_ADMIN):
        ctx.auth.require(request, checks.WRITE_TXN_MARKERS)
    return _response(body, partial(_write, ctx))


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    return _response(body, lambda marker, topic, index: error)


def _write(ctx: ApiContext, marker: Body, topic: str, index: int) -> Errors:
    if _is_impossible(marker):
        view = ctx.topics.get(topic)
        is_there = view is not None and 0 <= index < len(view.partitions)
        return Errors.UNKNOWN_SERVER_ERROR if is_there else Errors.UNKNOWN_TOPIC_OR_PARTITION
    _, unserved = led_partition(ctx, topic, index)
    if unserved is Errors.NOT_LEADER_OR_FOLLOWER:
        return unserved
    found = EndMarker(
        marker["ProducerId"],
        marker["ProducerEpoch"],
        marker["CoordinatorEpoch"],
        marker["TransactionResult"],
        marker.get("TransactionVersion", 0),
    )
    return ctx.markers.write((topic, index), found)


def _is_impossible(marker: Body) -> bool:
    """Return whether no batch can have the producer id or epoch of a marker."""
    return bool(marker["ProducerId"] < 0 or marker["ProducerEpoch"] == -1)


def _response(body: Body, result: Callable[[Body, str, int], Errors]) -> Body:
    """Return the results of all partitions; a topic without partitions, and a producer id without topics, has none."""
    rows: dict[int, dict[str, dict[int, Errors]]] = {}
    for marker in body["Markers"]:
        for topic in marker["Topics"]:
            for index in topic["PartitionIndexes"]:
                topics = rows.setdefault(marker["ProducerId"], {})
                topics.setdefault(topic["Name"], {})[index] = result(marker, topic["Name"], index)
    markers = []
    for producer_id, topics in rows.items():
        found = [
            {"Name": name, "Partitions": [partition_row(*one) for one in partitions.items()]}
            for name, partitions in topics.items()
        ]
        markers.append({"ProducerId": producer_id, "Topics": found})
    return {"Markers": markers}
