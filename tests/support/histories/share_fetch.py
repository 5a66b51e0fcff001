"""Random fetches and acknowledgements of two members of a share group, each with its connection."""

import random
from typing import Any

from tests.support.histories import log, share
from tests.support.histories.draw import Draw
from tests.support.histories.steps import TOPICS, Known, Reference, Step, bound, named, topic_id

GROUP = named("0")
CONNECTIONS = {"m0": 6, "m1": 7}  # a session ends with its connection
SHARED = {TOPICS[0]: (0, 1), TOPICS[1]: (0,)}
# If not all records of several partitions fit into a response, topic ids, which are random, decide which do.
FETCHED: dict[str, dict[str, tuple[int, ...]]] = {"m0": SHARED, "m1": {TOPICS[0]: (0,)}}
MAX_RECORDS = {"m0": [100], "m1": [1, 4, 100]}
WAIT_MS, INITIALIZED_MS = 300, 3_000
GROUP_RESOURCE = 32
LEVELS = ("read_committed", "read_committed", "read_uncommitted")
APPLIED_S = 0.4  # a broker applies configs after its response


def begin(draw: Draw) -> list[Step]:
    """Return steps that start the group at the first records, with a member that heartbeats and fetches once.

    The first fetch of a share partition initializes it, and Kafka may respond to one of several partitions before that.
    """
    change = {"Name": "share.auto.offset.reset", "ConfigOperation": 0, "Value": "earliest"}
    resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": GROUP, "Configs": [change]}
    names = [_name(draw, each) for each in SHARED]
    join = {"GroupId": GROUP, "MemberId": "h", "MemberEpoch": 0, "SubscribedTopicNames": names}
    return [
        Step("IncrementalAlterConfigs", 1, {"Resources": [resource]}, settles_s=APPLIED_S),
        Step("ShareGroupHeartbeat", 1, join, settled=share.stored(GROUP)),
        *(
            _session(_id(draw, name), partition, epoch)
            for name in SHARED
            for partition in SHARED[name]
            for epoch in (0, -1)
        ),
    ]


def _session(topic: Reference, partition: int, epoch: int) -> Step:
    """Return the fetch that begins or, with the epoch -1, ends a session of one partition."""
    topics = [{"TopicId": topic, "Partitions": [{"PartitionIndex": partition}]}] if epoch == 0 else []
    body = {"GroupId": GROUP, "MemberId": "h", "ShareSessionEpoch": epoch, "Topics": topics}
    limits = {"MaxWaitMs": INITIALIZED_MS, "MinBytes": 1, "MaxBytes": 1 << 20, "MaxRecords": 1, "BatchSize": 1}
    return Step("ShareFetch", 1, body | limits, connection=5)


def _name(draw: Draw, topic: str) -> Any:
    return log.TOPIC if draw.has_own_topic and topic == TOPICS[0] else topic


def _id(draw: Draw, topic: str) -> Reference:
    return log.TOPIC_ID if draw.has_own_topic and topic == TOPICS[0] else topic_id(topic)


def _session_epoch(member: str, change: int = 0) -> Reference:
    """Return the next epoch of the share session of a member, plus a change."""
    return Reference(f"session of {member} {change:+}", lambda known: known.values.get(("session", member), 0) + change)


def _acknowledgements(member: str, topic: Reference, partition: int, seed: int, *, releases: bool) -> Reference:
    """Return acknowledgement batches, most of them of offsets that the member has acquired.

    Args: ``seed``: of the choices. ``releases``: whether records may be released.
    """
    others = [0, 1, 1, 1, 2, 2, 3, 4] if releases else [0, 1, 1, 1, 3, 4]

    def batches(known: Known) -> list[dict[str, Any]]:
        rng = random.Random(seed)
        found = []
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            first, last = _range(rng, known.values.get(("acquired", member, bound(topic, known), partition), []))
            kinds = others if rng.random() < 0.97 else [5, -1]
            count = max(last - first + rng.choice([*[1] * 19, 2]), 1) if rng.random() < 0.4 else 1
            types = [rng.choice(kinds) for _ in range(count)] if rng.random() < 0.98 else []
            found.append({"FirstOffset": first, "LastOffset": last, "AcknowledgeTypes": types})
        return sorted(found, key=lambda one: int(one["FirstOffset"])) if rng.random() < 0.85 else found

    return Reference(f"acknowledgements of {member} {seed}", batches)


def _range(rng: random.Random, acquired: list[tuple[int, int]]) -> tuple[int, int]:
    if not acquired or rng.random() < 0.15:
        first = rng.choice([0, 2, 5])
        return first, first + rng.choice([0, 1, 3, -1])
    first, last = rng.choice(acquired)
    if rng.random() < 0.4:
        first = rng.randint(first, last)
        last = rng.randint(first, last)
    return first, last + (rng.choice([1, 5]) if rng.random() < 0.08 else 0)


def _epoch(draw: Draw, member: str) -> Any:
    if draw.happens(0.88):
        return _session_epoch(member)
    return draw.one([0, -1, -1, _session_epoch(member, 1), _session_epoch(member, -1), 2**31 - 1, -2])


def _topics(draw: Draw, member: str, *, acknowledges: bool, releases: bool) -> list[dict[str, Any]]:
    """Return rows of known topics: an unknown id is a deliberate difference (docs/groups.md)."""
    topics = []
    fetched = FETCHED[member]
    for name in draw.random.sample(sorted(fetched), draw.random.randint(0, len(fetched))):
        chosen = draw.random.sample(fetched[name], draw.random.randint(1, len(fetched[name])))
        rows: list[dict[str, Any]] = []
        for partition in chosen:
            seed = draw.random.getrandbits(32)
            batches = _acknowledgements(member, _id(draw, name), partition, seed, releases=releases)
            rows.append({"PartitionIndex": partition, "AcknowledgementBatches": batches if acknowledges else []})
        topics.append({"TopicId": _id(draw, name), "Partitions": rows})
    return topics


def _named(draw: Draw, member: str, epoch: Any) -> dict[str, Any]:
    return {
        "GroupId": GROUP if draw.happens(0.98) else None,
        "MemberId": member if draw.happens(0.98) else draw.one([None, ""]),
        "ShareSessionEpoch": epoch,
    }


def fetch(draw: Draw) -> Step:
    """Fetch without releases: Kafka fetches beside them, so that a released record may or may not be acquired again."""
    member, version = draw.one(sorted(CONNECTIONS)), draw.one([1, 2])
    epoch = _epoch(draw, member)
    renews = version >= 2 and draw.happens(0.1)
    body = _named(draw, member, epoch) | {
        "MaxWaitMs": 0 if renews else WAIT_MS,
        "MinBytes": 0 if renews else 1,
        "MaxBytes": 0 if renews else 1 << 20,
        "MaxRecords": 0 if renews and draw.happens(0.9) else draw.one(MAX_RECORDS[member]),
        "BatchSize": draw.one([1, 2, 100]),
        "Topics": _topics(draw, member, acknowledges=epoch != 0 or draw.happens(0.1), releases=False),
    }
    if version >= 2:
        body |= {"ShareAcquireMode": draw.one([0, 0, 0, 1]) if draw.happens(0.95) else 2, "IsRenewAck": renews}
    if epoch != 0 and draw.happens(0.1):
        body["ForgottenTopicsData"] = [{"TopicId": _id(draw, draw.one(TOPICS[:2])), "Partitions": [draw.one([0, 1])]}]
    return Step("ShareFetch", version, body, connection=CONNECTIONS[member])


def acknowledge(draw: Draw) -> Step:
    member, version = draw.one(sorted(CONNECTIONS)), draw.one([1, 2])
    body = _named(draw, member, _epoch(draw, member)) | {
        "Topics": _topics(draw, member, acknowledges=True, releases=True)
    }
    if version >= 2:
        body["IsRenewAck"] = draw.happens(0.3)
    return Step("ShareAcknowledge", version, body, connection=CONNECTIONS[member])


# ---- records that come and go meanwhile


def begin_log(draw: Draw) -> list[Step]:
    """Return steps that create a topic in place of one with records, and start the group."""
    return [*log.begin(draw), *begin(draw)]


def isolate(draw: Draw) -> Step:
    """Change which records of transactions the members get."""
    level = {"Name": "share.isolation.level", "ConfigOperation": 0, "Value": draw.one(LEVELS)}
    resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": GROUP, "Configs": [level]}
    return Step("IncrementalAlterConfigs", 1, {"Resources": [resource]}, settles_s=APPLIED_S)
