"""CreatePartitions: let topics grow."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.server.context import ApiContext, Body, RequestContext


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Grow each topic on its own; one named twice gets INVALID_REQUEST once, and stays as it is."""
    wanted: dict[str, list[Body]] = {}
    for row in body["Topics"]:
        wanted.setdefault(row["Name"], []).append(row)
    answers = []
    for name, rows in wanted.items():
        if len(rows) > 1:
            answers.append(_answer(name, Errors.INVALID_REQUEST, "Duplicate topic name."))
        else:
            answers.append(_grow(ctx, rows[0], body["ValidateOnly"]))
    return {"Results": answers}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Every topic with the same error."""
    return {"Results": [_answer(row["Name"], error, error.message) for row in body["Topics"]]}


def _grow(ctx: ApiContext, row: Body, validate_only: bool) -> Body:
    assignments = row["Assignments"]
    brokers = None if assignments is None else [one["BrokerIds"] for one in assignments]
    try:
        ctx.topics.add_partitions(row["Name"], row["Count"], brokers, validate_only)
    except KafkaError as error:
        unknown = error.error == Errors.UNKNOWN_TOPIC_OR_PARTITION
        return _answer(row["Name"], error.error, None if unknown else error.message)
    return _answer(row["Name"], Errors.NONE, None)


def _answer(name: str, error: Errors, message: str | None) -> Body:
    return {"Name": name, "ErrorCode": int(error), "ErrorMessage": message}
