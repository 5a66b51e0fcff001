"""StreamsGroupHeartbeat: a member sends its topology, reports its tasks, and gets its assignment (KIP-1071)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.apis.group_heartbeats import accepted, check_texts, invalid
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.feature_versions import STREAMS_VERSION
from kbroker.common.topic_names import INTERNAL_TOPICS, invalid_name_reason
from kbroker.coordinator.modern_group.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from kbroker.coordinator.streams_group.endpoints import EndpointPartitions, Partitions
from kbroker.coordinator.streams_group.internal_topics import Status, TopicProblem
from kbroker.coordinator.streams_group.member import Endpoint
from kbroker.coordinator.streams_group.membership import HeartbeatRequest, HeartbeatResult
from kbroker.coordinator.streams_group.records import tasks_body, tasks_of
from kbroker.coordinator.streams_group.tasks import Tasks
from kbroker.coordinator.streams_group.topology import InternalTopic
from kbroker.metadata.topic_rules import NewTopic
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

ROLES = ("ActiveTasks", "StandbyTasks", "WarmupTasks")
SHOWN_ERRORS = 3  # limit of the shown errors of the creation of internal topics


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Check the request, pass it to the coordinator of groups, and create the internal topics that are missing."""
    groups = ctx.groups.streams_groups
    if ctx.features.level(STREAMS_VERSION) < 1 or not groups.settings.is_enabled:
        return _refused(KafkaError(Errors.UNSUPPORTED_VERSION))
    try:
        ctx.auth.require(request, checks.STREAMS_GROUP_HEARTBEAT_GROUP, body["GroupId"])
        _check_topics(ctx, body, request)
        _check_features(body)
        _check(body)
        result = groups.heartbeat(_heartbeat(body, request))
    except KafkaError as error:
        return _refused(error)
    statuses = _create_missing(ctx, body["GroupId"], result, request)
    return _response(result, statuses)


def _refused(error: KafkaError) -> Body:
    """Return an error; a server error shows no text, as in Kafka."""
    text = None if error.error is Errors.UNKNOWN_SERVER_ERROR else error.message
    return {"ErrorCode": int(error.error), "ErrorMessage": text, "Status": []}


# ------------------------------------------------------------ request


def _check_topics(ctx: ApiContext, body: Body, request: RequestContext) -> None:
    """Check names and authorization of the topology's topics. Raises: KafkaError."""
    if body["Topology"] is None:
        return
    names: dict[str, None] = {}
    for row in body["Topology"]["Subtopologies"]:
        names.update(dict.fromkeys((*row["SourceTopics"], *row["RepartitionSinkTopics"])))
        names.update((topic["Name"], None) for topic in (*row["RepartitionSourceTopics"], *row["StateChangelogTopics"]))
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        text = f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        raise KafkaError(Errors.STREAMS_INVALID_TOPOLOGY, text)
    invalid = [name for name in names if invalid_name_reason(name) is not None]
    if invalid:
        raise KafkaError(Errors.STREAMS_INVALID_TOPOLOGY, f"Topic names {','.join(invalid)} are not valid topic names.")
    if len(ctx.auth.allowed(request, checks.STREAMS_GROUP_HEARTBEAT, names)) < len(names):
        raise KafkaError(checks.STREAMS_GROUP_HEARTBEAT.error)


def _check_features(body: Body) -> None:
    """Refuse the fields that Kafka 4.3 reserves. Raises: KafkaError INVALID_REQUEST."""
    if body["InstanceId"] is not None:
        raise invalid("Static membership is not yet supported.")
    for name in ("TaskOffsets", "TaskEndOffsets"):
        if body[name] is not None:
            raise invalid(f"{name} are not supported yet.")
    if body["WarmupTasks"]:
        raise invalid("WarmupTasks are not supported yet.")
    topology = body["Topology"]
    if topology is not None and any(row["SourceTopicRegex"] for row in topology["Subtopologies"]):
        raise invalid("Regular expressions for source topics are not supported yet.")


def _check(body: Body) -> None:
    """Check the request. Raises: KafkaError INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY, in Kafka's order and words."""
    epoch, topology = body["MemberEpoch"], body["Topology"]
    check_texts(body, "MemberId", "GroupId", "InstanceId", "RackId")
    if epoch == JOIN_EPOCH:
        if body["RebalanceTimeoutMs"] == -1:
            raise invalid("RebalanceTimeoutMs must be provided in first request.")
        for role in ROLES:
            if body[role] is None or body[role]:
                raise invalid(f"{role} must be empty when (re-)joining.")
        if topology is None:
            raise invalid("Topology must be non-null when (re-)joining.")
        for topic in (topic for row in topology["Subtopologies"] for topic in row["StateChangelogTopics"]):
            if topic["Partitions"]:
                text = f"Changelog topic {topic['Name']} must have an undefined partition count, but it is set to "
                raise KafkaError(Errors.STREAMS_INVALID_TOPOLOGY, f"{text}{topic['Partitions']}.")
    elif epoch == STATIC_LEAVE_EPOCH:
        raise invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    if any(body[role] is not None for role in ROLES) and any(body[role] is None for role in ROLES):
        raise invalid("If one task-type is non-null, all must be non-null.")
    if epoch != JOIN_EPOCH and topology is not None:
        raise invalid("Topology can only be provided when (re-)joining.")


def _heartbeat(body: Body, request: RequestContext) -> HeartbeatRequest:
    """Return the request for the coordinator. Raises: KafkaError UNKNOWN_SERVER_ERROR for a tag that is given twice."""
    endpoint, tags = body["UserEndpoint"], body["ClientTags"]
    if tags is not None and len({row["Key"] for row in tags}) < len(tags):
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, "A client tag is given twice.")
    active, standby, warmup = (None if body[role] is None else tasks_of(body[role]) for role in ROLES)
    return HeartbeatRequest(
        body["GroupId"],
        body["MemberId"],
        body["MemberEpoch"],
        body["RackId"],
        body["RebalanceTimeoutMs"],
        body["Topology"],
        active,
        standby,
        warmup,
        body["ProcessId"],
        None if endpoint is None else Endpoint(endpoint["Host"], endpoint["Port"]),
        None if tags is None else tuple(sorted((row["Key"], row["Value"]) for row in tags)),
        body["ShutdownApplication"],
        body["EndpointInformationEpoch"],
        request.client_id,
        f"/{request.client_host}",
    )


# ------------------------------------------------------------ internal topics


def _create_missing(
    ctx: ApiContext, group_id: str, result: HeartbeatResult, request: RequestContext
) -> list[TopicProblem]:
    """Create the missing internal topics, if the client may create all of them; return the statuses for the response.

    An error is shown in the responses of two heartbeat intervals, and no new attempt is made until then.
    """
    statuses, missing = list(result.statuses), result.missing
    if not missing:
        return statuses
    if not ctx.auth.allows(request, checks.STREAMS_GROUP_HEARTBEAT_CREATE_ANY):
        allowed = ctx.auth.allowed(request, checks.STREAMS_GROUP_HEARTBEAT_CREATE, missing)
        refused = [name for name in missing if name not in allowed]
        if refused:
            return _with_detail(statuses, f"; Unauthorized to CREATE on topics {', '.join(refused)}.")
    groups = ctx.groups.streams_groups
    errors = groups.creation_errors.of(missing)
    if errors:
        shown = ", ".join(f"{name} ({text})" for name, text in list(errors.items())[:SHOWN_ERRORS])
        more = f" and {len(errors) - SHOWN_ERRORS} more" if len(errors) > SHOWN_ERRORS else ""
        statuses = _with_detail(statuses, f"; Creation failed: {shown}{more}.")
    wanted = [_new_topic(topic) for name, topic in missing.items() if name not in errors]
    if wanted:
        time_to_live_ms = 2 * groups.settings.heartbeat_interval_ms(group_id)
        results = ctx.topics.create_all(wanted, charge=ctx.mutation_quota(request, is_strict=True).record)
        for topic, made in zip(wanted, results, strict=True):
            if isinstance(made, KafkaError) and made.error is not Errors.TOPIC_ALREADY_EXISTS:
                groups.creation_errors.put(topic.name, made.message, time_to_live_ms)
    return statuses


def _new_topic(topic: InternalTopic) -> NewTopic:
    configs: Mapping[str, Any] = dict(topic.configs)
    return NewTopic(topic.name, topic.partitions, topic.replication_factor or -1, [], configs)


def _with_detail(statuses: list[TopicProblem], text: str) -> list[TopicProblem]:
    """Return the statuses; ``text`` is added to the status of missing internal topics."""
    return [
        one._replace(text=one.text + text) if one.status is Status.MISSING_INTERNAL_TOPICS else one for one in statuses
    ]


# ------------------------------------------------------------ response


def _response(result: HeartbeatResult, statuses: list[TopicProblem]) -> Body:
    response: Body = {
        **accepted(result),
        "Status": [{"StatusCode": int(one.status), "StatusDetail": one.text} for one in statuses],
        "EndpointInformationEpoch": result.endpoint_epoch,
    }
    if result.assigned is not None:
        tasks: tuple[Tasks, ...] = result.assigned.without_epochs
        response.update(zip(ROLES, map(tasks_body, tasks), strict=True))
    if result.endpoints is not None:
        response["PartitionsByUserEndpoint"] = [_endpoint(one) for one in result.endpoints]
    return response


def _endpoint(one: EndpointPartitions) -> Body:
    return {
        "UserEndpoint": {"Host": one.endpoint.host, "Port": one.endpoint.port},
        "ActivePartitions": _partitions(one.active),
        "StandbyPartitions": _partitions(one.standby),
    }


def _partitions(rows: Partitions) -> list[Body]:
    return [{"Topic": topic, "Partitions": indexes} for topic, indexes in rows]
