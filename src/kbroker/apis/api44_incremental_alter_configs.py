"""IncrementalAlterConfigs: keys are set, deleted, appended to and subtracted from; each resource separately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from kbroker.common.configs.config_resource import ConfigChange, ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.metadata.configs.dynamic_configs import check_changes
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.forward import Forward
from kbroker.requests.rows import resource_row
from kbroker.security.authorizer import checks
from kbroker.security.authorizer.auth_helper import CLUSTER_NAME

#: Resources that the controller checks alone; other types are loggers, brokers, and unknown ones.
STORED = (ConfigResourceType.TOPIC, ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP)


#: The authorizer's check before the configs of a resource change, by type of resource.
_CHECKS = {
    ConfigResourceType.TOPIC: checks.INCREMENTAL_ALTER_CONFIGS_TOPIC,
    ConfigResourceType.GROUP: checks.INCREMENTAL_ALTER_CONFIGS_GROUP,
    ConfigResourceType.BROKER: checks.INCREMENTAL_ALTER_CONFIGS_CLUSTER,
    ConfigResourceType.CLIENT_METRICS: checks.INCREMENTAL_ALTER_CONFIGS_CLUSTER,
    ConfigResourceType.BROKER_LOGGER: checks.INCREMENTAL_ALTER_CONFIGS_LOGGERS,
}


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Change each resource, or only check it; a duplicate resource is not changed at all."""

    def alter(resource: Body) -> bool:
        changes = _changes(resource)
        check_changes(changes)
        authorize(ctx, request, resource, _CHECKS)
        ctx.dynamic.alter(resource["ResourceType"], resource["ResourceName"], changes, body["ValidateOnly"])
        return True

    return each_resource(body, alter)


def before_forwarding(ctx: ApiContext, body: Body, request: RequestContext) -> Forward | Body:
    """Change levels of loggers, and check the configs of this broker; the controller does the rest.

    Source: ``ConfigAdminManager.preprocess``.
    """

    def look(resource: Body) -> bool:
        kind, name, changes = resource["ResourceType"], resource["ResourceName"], _changes(resource)
        check_changes(changes)
        is_local: bool = kind == ConfigResourceType.BROKER_LOGGER
        if is_local:
            authorize(ctx, request, resource, _CHECKS)
        if is_local or kind not in STORED:
            ctx.dynamic.alter(kind, name, changes, body["ValidateOnly"] or not is_local)
        return is_local

    return forward_rest(body, look)


def _changes(resource: Body) -> list[ConfigChange]:
    return [ConfigChange(row["Name"], row["ConfigOperation"], row["Value"]) for row in resource["Configs"]]


def authorize(
    ctx: ApiContext, request: RequestContext, resource: Body, asked: Mapping[ConfigResourceType, checks.Check]
) -> None:
    """Check that the client may change the configs of a resource. Raises: KafkaError. Unknown types fail later."""
    check = asked.get(resource["ResourceType"])
    if check is not None:
        ctx.auth.require(request, check, CLUSTER_NAME if check.kind is checks.CLUSTER else resource["ResourceName"])


def each_resource(body: Body, alter: Callable[[Body], bool]) -> Body:
    """Return the response, for AlterConfigs too: ``alter`` raises KafkaError for a resource that is refused."""
    body = body_as_java_reads(body)  # names and values are stored
    return {"Responses": [row for row in _rows(body, alter) if row is not None]}


def forward_rest(body: Body, look: Callable[[Body], bool]) -> Forward | Body:
    """Return the part that remains for the controller, for AlterConfigs too.

    Args: ``look``: returns whether a resource needs no change by the controller; raises KafkaError to refuse it.
    """
    body = body_as_java_reads(body)  # the controller's response has these names
    rows = _rows(body, look)
    if None not in rows:
        return {"Responses": rows}
    if all(row is None for row in rows):
        return Forward()

    def merge(response: Body) -> Body:
        found = {(row["ResourceType"], row["ResourceName"]): row for row in response["Responses"]}
        merged = []
        for resource, row in zip(body["Resources"], rows, strict=True):
            theirs = found.get((resource["ResourceType"], resource["ResourceName"]))
            missing = resource_row(resource, Errors.UNKNOWN_SERVER_ERROR, None)
            merged.append(row if row is not None else missing if theirs is None else theirs)
        return {**response, "Responses": merged}

    rest = [resource for resource, row in zip(body["Resources"], rows, strict=True) if row is None]
    return Forward({**body, "Resources": rest}, merge)


def _rows(body: Body, alter: Callable[[Body], bool]) -> list[Body | None]:
    """Return the response of each resource, None if ``alter`` returned False for it."""
    times = Counter((row["ResourceType"], row["ResourceName"]) for row in body["Resources"])
    rows: list[Body | None] = []
    for resource in body["Resources"]:
        error, message = Errors.NONE, None
        try:
            if times[resource["ResourceType"], resource["ResourceName"]] > 1:
                raise KafkaError(Errors.INVALID_REQUEST, "Each resource must appear at most once.")
            if not alter(resource):
                rows.append(None)
                continue
        except KafkaError as refusal:
            error = refusal.error
            message = None if error == Errors.UNKNOWN_SERVER_ERROR else refusal.message
        rows.append(resource_row(resource, error, message))
    return rows


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every resource with the same error."""
    return {"Responses": [resource_row(resource, error, error.message) for resource in body["Resources"]]}
