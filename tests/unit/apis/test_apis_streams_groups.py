"""StreamsGroupHeartbeat and StreamsGroupDescribe above the coordinator: internal topics, switches, permissions."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import pytest

from kbroker.common.errors import Errors
from kbroker.coordinator.streams_group.internal_topics import Status
from kbroker.security.authorizer import checks
from kbroker.security.authorizer.auth_helper import AuthHelper
from tests.support.server import Bench, make_bench
from tests.support.streams_groups import AT_ONCE, StreamsGroupBench, subtopology, topology

Body = dict[str, Any]


def benches(**settings: Any) -> tuple[Bench, StreamsGroupBench]:
    """Return the bench of the broker and the bench of its coordinator."""
    bench, groups = make_bench(), StreamsGroupBench(settings=replace(AT_ONCE, **settings))
    bench.serve_groups(groups.coordinator)
    return bench, groups


def join(bench: Bench, *, replicas: int = 0, shape: Body | None = None, **configs: str) -> Body:
    """Join member m with a topology, by default one with a changelog, and return the response."""
    shape = shape or topology(subtopology(changelogs=["changelog"]))
    for changelog in shape["Subtopologies"][0]["StateChangelogTopics"]:
        changelog["ReplicationFactor"] = replicas
        changelog["TopicConfigs"] = [{"Key": key.replace("_", "."), "Value": value} for key, value in configs.items()]
    nothing: Body = {"ActiveTasks": [], "StandbyTasks": [], "WarmupTasks": []}
    first = {"MemberEpoch": 0, "RebalanceTimeoutMs": 9000, "Topology": shape, "ProcessId": "p", **nothing}
    return bench.ask("StreamsGroupHeartbeat", 0, {"GroupId": "g", "MemberId": "m", **first})


def beat(bench: Bench, epoch: int) -> str:
    """Return the detail of the only status of a heartbeat."""
    response = bench.ask("StreamsGroupHeartbeat", 0, {"GroupId": "g", "MemberId": "m", "MemberEpoch": epoch})
    (status,) = response["Status"]
    assert status["StatusCode"] == Status.MISSING_INTERNAL_TOPICS
    return str(status["StatusDetail"])


def test_the_broker_creates_internal_topics() -> None:
    bench, _ = benches()
    response = join(bench, cleanup_policy="compact")
    assert response["Status"] == [{"StatusCode": 3, "StatusDetail": "Internal topics are missing: changelog"}]
    view = bench.ctx.topics.get("changelog")
    assert view is not None
    assert (len(view.partitions), bench.ctx.image.configs[2, "changelog"]) == (4, {"cleanup.policy": "compact"})
    assert beat(bench, 2) == "Internal topics are missing: changelog"  # the coordinator has not read the metadata yet


def test_the_error_of_a_creation_is_shown_until_it_is_tried_again() -> None:
    bench, groups = benches()
    response = join(bench, replicas=3)
    assert response["Status"][0]["StatusDetail"] == "Internal topics are missing: changelog"
    error = "Internal topics are missing: changelog; Creation failed: changelog (Unable to replicate the partition 3 "
    assert beat(bench, 2).startswith(error)
    groups.after(9999)
    assert beat(bench, 2).startswith(error)
    groups.after(1)
    assert beat(bench, 2) == "Internal topics are missing: changelog"
    assert beat(bench, 2).startswith(error)


def test_too_many_partitions_of_internal_topics_are_refused_before_they_are_made() -> None:
    bench, _ = benches()
    sink = {"Name": "repartition", "Partitions": 10_001, "ReplicationFactor": 0, "TopicConfigs": []}
    join(bench, shape=topology(subtopology(sinks=["repartition"], repartition=[sink])))
    assert beat(bench, 2).endswith("repartition (Excessively large number of partitions per request.).")


def deny(monkeypatch: pytest.MonkeyPatch, *denied: checks.Check) -> None:
    """Deny every client these checks."""

    def allows(self: AuthHelper, client: Any, check: checks.Check, name: str = "", references: int = 1) -> bool:
        return check not in denied

    def allowed(self: AuthHelper, client: Any, check: checks.Check, names: Iterable[str]) -> Collection[str]:
        return set() if check in denied else set(names)

    monkeypatch.setattr(AuthHelper, "allows", allows)
    monkeypatch.setattr(AuthHelper, "allowed", allowed)


def test_a_member_may_lack_the_right_to_create(monkeypatch: pytest.MonkeyPatch) -> None:
    """The permission to CREATE on the cluster or on the topic is sufficient."""
    bench, _ = benches()
    deny(monkeypatch, checks.STREAMS_GROUP_HEARTBEAT_CREATE_ANY, checks.STREAMS_GROUP_HEARTBEAT_CREATE)
    refusal = "Internal topics are missing: changelog; Unauthorized to CREATE on topics changelog."
    assert join(bench)["Status"][0]["StatusDetail"] == refusal
    assert bench.ctx.topics.get("changelog") is None
    deny(monkeypatch, checks.STREAMS_GROUP_HEARTBEAT_CREATE_ANY)
    beat(bench, 2)
    assert bench.ctx.topics.get("changelog") is not None


def test_topics_that_a_client_may_not_describe(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = benches()
    join(bench)
    deny(monkeypatch, checks.STREAMS_GROUP_DESCRIBE, checks.STREAMS_GROUP_HEARTBEAT)
    assert join(bench)["ErrorCode"] == Errors.TOPIC_AUTHORIZATION_FAILED
    (group,) = bench.ask("StreamsGroupDescribe", 0, {"GroupIds": ["g"]})["Groups"]
    text = "The described group uses topics that the client is not authorized to describe."
    assert (group["ErrorCode"], group["ErrorMessage"]) == (Errors.TOPIC_AUTHORIZATION_FAILED, text)
    assert (group["Members"], group["Topology"]) == ([], None)


def test_a_protocol_that_is_not_offered() -> None:
    """Without streams in group.coordinator.rebalance.protocols both APIs return UNSUPPORTED_VERSION, as in Kafka."""
    bench, groups = benches(is_enabled=False)
    assert join(bench)["ErrorCode"] == Errors.UNSUPPORTED_VERSION
    (group,) = bench.ask("StreamsGroupDescribe", 0, {"GroupIds": ["g"]})["Groups"]
    assert (group["ErrorCode"], group["ErrorMessage"]) == (Errors.UNSUPPORTED_VERSION, None)
    assert not groups.coordinator.list_groups()


def test_the_feature_turns_the_protocol_off() -> None:
    bench, _ = benches()
    body = {"FeatureUpdates": [{"Feature": "streams.version", "MaxVersionLevel": 0, "UpgradeType": 2}]}
    assert bench.ask("UpdateFeatures", 1, {"timeoutMs": 1000, "ValidateOnly": False, **body})["ErrorCode"] == 0
    assert join(bench)["ErrorCode"] == Errors.UNSUPPORTED_VERSION
