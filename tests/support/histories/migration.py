"""Random requests of members of either protocol in one group, which is converted.

Kafka assigns uniformly in the order of a hash map of member ids, of which those of classic members are random. Range
assignment sorts the members, by group instance id if they have one. Members have one topic, since those of a classic
member's assignment are in the order of a hash map of topic ids.
"""

from tests.support.histories import classic, consumer
from tests.support.histories.draw import Draw
from tests.support.histories.steps import TOPICS, Step

STATIC_VERSION, STATIC = 5, 0.95  # first version with group instance ids, and their probability


def join(draw: Draw) -> Step:
    return classic.join(draw, STATIC_VERSION, STATIC, [TOPICS[:1]])


def heartbeat(draw: Draw) -> Step:
    """Return a heartbeat without a regular expression.

    Kafka matches the other members' expressions later if a classic member replaces a member with an expression.
    """
    step = consumer.heartbeat(draw)
    step.body.pop("SubscribedTopicRegex", None)
    if "ServerAssignor" in step.body:
        step.body["ServerAssignor"] = "range"
    return step
