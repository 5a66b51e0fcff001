"""Random requests of members of consumer groups."""

from typing import Any

from tests.support.histories import offsets
from tests.support.histories.draw import RACKS, Draw
from tests.support.histories.steps import ABSENT, TOPICS, Step, owned, topic_id

KIND = "c"
ONE_TOPIC = [TOPICS[:1], TOPICS[:1], (ABSENT,), (TOPICS[0], TOPICS[0]), (), (TOPICS[0], ABSENT)]
SUBSCRIPTIONS = [*ONE_TOPIC, TOPICS[:2], TOPICS]
# Uniform assignment of several topics depends on their ids, which are random.
ONE_TOPIC_ASSIGNORS = [None, None, None, "uniform", "uniform", "range", "", "zzz"]
ASSIGNORS = [*["range"] * 7, "zzz"]
# One for each member: if a member changes its group's only expression, Kafka matches the new one a heartbeat later.
ONE_TOPIC_EXPRESSIONS = ["histories-[ad]", "histories-a|histories-d", "(", "histories-z+"]
EXPRESSIONS = ["histories-[ab]", "histories-a|histories-c", "(", "histories-z+"]
EXPRESSION_S = 0.4  # a broker evaluates expressions after its response


def heartbeat(draw: Draw) -> Step:
    group, version = draw.group(), draw.random.randint(0, 1)
    member = draw.newer_member(group, KIND)
    epoch = draw.epoch(group, member)
    is_join = epoch == 0
    body: dict[str, Any] = {
        "GroupId": group,
        "MemberId": member if draw.happens(0.97) or is_join else "",
        "MemberEpoch": epoch,
        "InstanceId": "i1" if member.endswith("1") else draw.one([*[None] * 27, *["i1"] * 3, ""]),
        "RackId": draw.one(RACKS),
    }
    if is_join or draw.happens(0.3):
        body |= {
            "RebalanceTimeoutMs": _rebalance_ms(draw),
            "TopicPartitions": [] if draw.happens(0.96) else None,
            "SubscribedTopicNames": [*draw.one(SUBSCRIPTIONS if draw.has_topics else ONE_TOPIC)],
            "ServerAssignor": draw.one(ASSIGNORS if draw.has_topics else ONE_TOPIC_ASSIGNORS),
        }
        if version >= 1 and draw.happens(0.3):
            expressions = EXPRESSIONS if draw.has_topics else ONE_TOPIC_EXPRESSIONS
            body["SubscribedTopicRegex"] = expressions[int(member[-1]) % 4] if draw.happens(0.8) else ""
        if is_join and not body["SubscribedTopicNames"]:  # a deliberate difference (docs/compatibility.md)
            body["SubscribedTopicNames"] = [ABSENT]
        if draw.happens(0.04):
            body["SubscribedTopicNames"] = None
    if not is_join and draw.happens(0.6):
        body["TopicPartitions"] = owned(group, member)
    if not is_join and draw.happens(0.05):
        body["TopicPartitions"] = [{"TopicId": topic_id(draw.topic()), "Partitions": [draw.one([0, 1, 9, -1])]}]
    settles_s = EXPRESSION_S if body.get("SubscribedTopicRegex") else 0.0
    return Step("ConsumerGroupHeartbeat", version, body, settles_s=settles_s)


def _rebalance_ms(draw: Draw) -> int:
    if draw.happens(0.03):
        return draw.one([-1, 0, -5])
    return 60_000


def commit(draw: Draw) -> Step:
    return offsets.newer_commit(draw, KIND)


def fetch(draw: Draw) -> Step:
    return offsets.newer_fetch(draw, KIND)
