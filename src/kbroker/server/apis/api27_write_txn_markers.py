"""WriteTxnMarkers: markers that a coordinator, or an administrator (``kafka-transactions abort``), wants written."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.server.context import ApiContext, Body, RequestContext


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Write each marker to each of its partitions; those of one producer id are one row."""
    rows: dict[int, dict[str, dict[int, Errors]]] = {}
    for marker in body["Markers"]:
        topics = rows.setdefault(marker["ProducerId"], {})
        for topic in marker["Topics"]:
            results = topics.setdefault(topic["Name"], {})
            for index in topic["PartitionIndexes"]:
                results[index] = _write(ctx, marker, topic["Name"], index)
    return _response(rows)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """The same error for every partition."""
    rows: dict[int, dict[str, dict[int, Errors]]] = {}
    for marker in body["Markers"]:
        topics = rows.setdefault(marker["ProducerId"], {})
        for topic in marker["Topics"]:
            topics.setdefault(topic["Name"], {}).update(dict.fromkeys(topic["PartitionIndexes"], error))
    return _response(rows)


def _write(ctx: ApiContext, marker: Body, topic: str, index: int) -> Errors:
    return ctx.markers.write(
        (topic, index),
        marker["ProducerId"],
        marker["ProducerEpoch"],
        marker["CoordinatorEpoch"],
        marker["TransactionResult"],
        marker.get("TransactionVersion", 0),
    )


def _response(rows: dict[int, dict[str, dict[int, Errors]]]) -> Body:
    markers = []
    for producer_id, topics in rows.items():
        found = [
            {
                "Name": name,
                "Partitions": [
                    {"PartitionIndex": index, "ErrorCode": int(error)} for index, error in partitions.items()
                ],
            }
            for name, partitions in topics.items()
        ]
        markers.append({"ProducerId": producer_id, "Topics": found})
    return {"Markers": markers}
