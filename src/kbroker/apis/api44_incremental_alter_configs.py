"""IncrementalAlterConfigs: keys are set, deleted, appended to and subtracted from; each resource separately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from kbroker.common.configs.config_resource import ConfigChange, ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.metadata.configs.dynamic_configs import check_changes
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


class AlterChecks(NamedTuple):
    """Checks of the authorizer before the configs of a resource change, by type of resource."""

    topic: checks.Check
    group: checks.Check
    cluster: checks.Check
    loggers: checks.Check


_CHECKS = AlterChecks(
    checks.INCREMENTAL_ALTER_CONFIGS_TOPIC,
    checks.INCREMENTAL_ALTER_CONFIGS_GROUP,
    checks.INCREMENTAL_ALTER_CONFIGS_CLUSTER,
    checks.INCREMENTAL_ALTER_CONFIGS_LOGGERS,
)


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Change each resource, or only check it; a duplicate resource is not changed at all."""

    def alter(resource: Body) -> None:
        changes = [ConfigChange(row["Name"], row["ConfigOperation"], row["Value"]) for row in resource["Configs"]]
        check_changes(changes)
        authorize(ctx, request, resource, _CHECKS)
        ctx.dynamic.alter(resource["ResourceType"], resource["ResourceName"], changes, body["ValidateOnly"])

    return each_resource(body, alter)


def authorize(ctx: ApiContext, request: RequestContext, resource: Body, asked: AlterChecks) -> None:
    """Check that the client may change the configs of a resource. Raises: KafkaError. Unknown types fail later."""
    kind = resource["ResourceType"]
    if kind == ConfigResourceType.TOPIC:
        ctx.auth.require(request, asked.topic, resource["ResourceName"])
    elif kind == ConfigResourceType.GROUP:
        ctx.auth.require(request, asked.group, resource["ResourceName"])
    elif kind == ConfigResourceType.BROKER_LOGGER:
        ctx.auth.require(request, asked.loggers)
    elif kind in (ConfigResourceType.BROKER, ConfigResourceType.CLIENT_METRICS):
        ctx.auth.require(request, asked.cluster)


def each_resource(body: Body, alter: Callable[[Body], None]) -> Body:
    """Return the response, for AlterConfigs too: ``alter`` raises KafkaError for a resource that is refused."""
    body = body_as_java_reads(body)  # it is stored
    times = Counter((row["ResourceType"], row["ResourceName"]) for row in body["Resources"])
    responses = []
    for resource in body["Resources"]:
        error, message = Errors.NONE, None
        try:
            if times[resource["ResourceType"], resource["ResourceName"]] > 1:
                raise KafkaError(Errors.INVALID_REQUEST, "Each resource must appear at most once.")
            alter(resource)
        except KafkaError as refusal:
            error = refusal.error
            message = None if error == Errors.UNKNOWN_SERVER_ERROR else refusal.message
        responses.append(_response(resource, error, message))
    return {"Responses": responses}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every resource with the same error."""
    return {"Responses": [_response(resource, error, error.message) for resource in body["Resources"]]}


def _response(resource: Body, error: Errors, message: str | None) -> Body:
    return {
        "ErrorCode": int(error),
        "ErrorMessage": message,
        "ResourceType": resource["ResourceType"],
        "ResourceName": resource["ResourceName"],
    }
