"""DescribeConfigs: configs of topics, brokers, loggers, groups, and client metrics subscriptions."""

from __future__ import annotations

from collections.abc import Set

from kbroker.common.configs.config_def import ConfigType
from kbroker.common.configs.config_resource import ConfigResourceType, ConfigSource, check_broker_id
from kbroker.common.configs.config_resources import CLIENT_METRICS_TABLE, GROUP_TABLE
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.common.topic_names import invalid_name_reason
from kbroker.metadata.configs.broker_loggers import levels
from kbroker.metadata.configs.config_entries import (
    Entry,
    broker_entries,
    default_broker_entries,
    resource_entries,
    topic_entries,
)
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.response_room import ResponseRoom
from kbroker.requests.rows import MALFORMED, resource_row
from kbroker.security.authorizer import checks

# Maximum rows of a response beyond one for each topic and broker: for duplicates, and for groups and subscriptions, for
# which every name is valid. Kafka has no such limit; a name of a few bytes would cost kilobytes.
MAX_FREE_ROWS = 10_000

TOO_MANY = "Too many resources in one request: ask for the rest in another."


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each resource separately; an empty or null list of keys means all keys, unknown keys are left out.

    A duplicate resource is described again; beyond MAX_FREE_ROWS or the response's size limit, rows that cost the
    sender nothing get INVALID_REQUEST. One unknown resource type makes all resources INVALID_REQUEST, as in Kafka.
    """
    if any(resource["ResourceType"] not in ConfigResourceType._value2member_map_ for resource in body["Resources"]):
        refused = [_result(resource, Errors.INVALID_REQUEST, MALFORMED, []) for resource in body["Resources"]]
        return {"Results": refused}
    results = []
    described: dict[tuple[int, str], tuple[Set[str] | None, list[Entry]]] = {}  # keys (None: all), entries
    free_rows = 0
    room = ResponseRoom()
    for resource in body_as_java_reads(body["Resources"]):
        kind, name = resource["ResourceType"], resource["ResourceName"]
        keys = frozenset(resource["ConfigurationKeys"] or ()) or None
        known = described.get((kind, name))
        is_free = known is not None or kind in (ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP)
        try:
            _authorize(ctx, request, kind, name)
            if is_free and (free_rows >= MAX_FREE_ROWS or room.is_full):
                raise KafkaError(Errors.INVALID_REQUEST, TOO_MANY)
            if known is None or known[0] not in (keys, None):
                looked_up = keys if known is None else None  # all for a duplicate: each resource is read twice at most
                entries = [_shown(body, entry) for entry in _entries(ctx, kind, name, looked_up)]
                known = described[kind, name] = looked_up, entries
        except KafkaError as error:
            unknown = error.error == Errors.UNKNOWN_TOPIC_OR_PARTITION
            results.append(_result(resource, error.error, "" if unknown else error.message, []))
            continue
        configs = known[1] if keys is None else [entry for entry in known[1] if entry["Name"] in keys]
        if is_free:
            free_rows += len(configs)
            room.take(configs)
        results.append(_result(resource, Errors.NONE, "", configs))
    return {"Results": results}


def _authorize(ctx: ApiContext, request: RequestContext, kind: int, name: str) -> None:
    """Check that the client may see the configs of a resource. Raises: KafkaError."""
    if kind == ConfigResourceType.TOPIC:
        ctx.auth.require(request, checks.DESCRIBE_CONFIGS_TOPIC, name)
    elif kind == ConfigResourceType.GROUP:
        ctx.auth.require(request, checks.DESCRIBE_CONFIGS_GROUP, name)
    else:
        ctx.auth.require(request, checks.DESCRIBE_CONFIGS_CLUSTER)


def _shown(body: Body, entry: Entry) -> Entry:
    """Return an entry with the requested fields only."""
    return {
        **entry,
        "Synonyms": entry["Synonyms"] if body["IncludeSynonyms"] else [],
        "Documentation": entry["Documentation"] if body["IncludeDocumentation"] else None,
    }


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every resource with the same error."""
    return {"Results": [_result(resource, error, error.message, []) for resource in body["Resources"]]}


def _entries(ctx: ApiContext, kind: int, name: str, wanted: Set[str] | None) -> list[Entry]:
    """Return the entries of a resource; those not in ``wanted`` (None: all) may be left out. Raises: KafkaError."""
    if kind == ConfigResourceType.TOPIC:
        return _topic(ctx, name, wanted)
    if kind == ConfigResourceType.BROKER:
        if not name:
            return default_broker_entries(ctx.image.configs.get((ConfigResourceType.BROKER, ""), {}))
        unexpected = "Unexpected broker id, expected {0} or empty string, but received {1}"
        check_broker_id(name, ctx.node_id, "Broker", unexpected)
        return broker_entries(ctx.config, ctx.bound_addresses, wanted)
    if kind == ConfigResourceType.BROKER_LOGGER:
        if not name:
            raise KafkaError(Errors.INVALID_REQUEST, "Broker id must not be empty")
        check_broker_id(name, ctx.node_id, "Broker", "Unexpected broker id, expected {0} but received {1}")
        return [_logger(*one) for one in levels().items()]
    if kind == ConfigResourceType.CLIENT_METRICS:
        if not name:
            raise KafkaError(Errors.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        configs = ctx.image.configs.get((ConfigResourceType.CLIENT_METRICS, name), {})
        source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
        return resource_entries(CLIENT_METRICS_TABLE, configs, source, wanted=wanted)
    if not name:
        raise KafkaError(Errors.INVALID_REQUEST, "Group name must not be empty")
    configs = ctx.image.configs.get((ConfigResourceType.GROUP, name), {})
    return resource_entries(GROUP_TABLE, configs, ConfigSource.DYNAMIC_GROUP_CONFIG, ctx.config, wanted)


def _topic(ctx: ApiContext, name: str, wanted: Set[str] | None) -> list[Entry]:
    reason = invalid_name_reason(name)
    if reason is not None:
        raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")
    view = ctx.topics.get(name)
    if view is None:
        raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
    return topic_entries(ctx.config, view.configs, wanted)


def _logger(name: str, level: str) -> Entry:
    return {
        "Name": name,
        "Value": level,
        "ReadOnly": False,
        "ConfigSource": int(ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG),
        "IsSensitive": False,
        "Synonyms": [],
        "ConfigType": int(ConfigType.UNKNOWN),
        "Documentation": None,
    }


def _result(resource: Body, error: Errors, message: str, configs: list[Entry]) -> Body:
    return {**resource_row(resource, error, message), "Configs": configs}
