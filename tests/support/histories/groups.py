"""Random requests that list, describe and delete groups of any type."""

from tests.support.histories.draw import Draw
from tests.support.histories.steps import Step

# ListGroups finds NotReady under a different name from Kafka's, a deliberate difference (docs/compatibility.md).
STATES = (
    *("Stable", "stable", "Empty", "empty", "PreparingRebalance", "preparing-rebalance", "CompletingRebalance"),
    *("Assigning", "Reconciling", "Dead", "bogus", ""),
)
TYPES = ("classic", "Consumer", "share", "streams", "CLASSIC", "bogus", "", "unknown")


def list_all(draw: Draw) -> Step:
    version = draw.random.randint(3, 5)
    states = [draw.one(STATES) for _ in draw.rows(0, 1, 1, 2)] if version >= 4 else []
    types = [draw.one(TYPES) for _ in draw.rows(0, 0, 1, 2)] if version >= 5 else []
    return Step("ListGroups", version, {"StatesFilter": states, "TypesFilter": types})


def delete(draw: Draw) -> Step:
    names = [draw.group() for _ in draw.rows(0, 1, 1, 1, 2)]
    return Step("DeleteGroups", draw.random.randint(0, 2), {"GroupsNames": names})


def describe_classic(draw: Draw) -> Step:
    version = draw.random.randint(0, 6)
    body = {
        "Groups": [draw.group() for _ in draw.rows(0, 1, 2)],
        "IncludeAuthorizedOperations": version >= 3 and draw.happens(0.3),
    }
    return Step("DescribeGroups", version, body)


def describe_consumer(draw: Draw) -> Step:
    return _described(draw, "ConsumerGroupDescribe", draw.random.randint(0, 1))


def describe_share(draw: Draw) -> Step:
    return _described(draw, "ShareGroupDescribe", 1)


def describe_streams(draw: Draw) -> Step:
    return _described(draw, "StreamsGroupDescribe", 0)


def _described(draw: Draw, api: str, version: int) -> Step:
    body = {"GroupIds": [draw.group() for _ in draw.rows(0, 1, 2)], "IncludeAuthorizedOperations": draw.happens(0.3)}
    return Step(api, version, body)
