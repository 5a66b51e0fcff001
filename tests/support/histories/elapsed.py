"""Random requests of members and transactions that have short or long time-outs, and the time that passes after them.

A burst of requests takes a fraction of the short time-outs, after which a multiple of them passes. Then the short
time-outs have expired on both brokers, and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tests.support.histories import classic, consumer, groups, share, share_fetch, streams, transactions
from tests.support.histories.configs import GROUP, SET
from tests.support.histories.draw import Draw
from tests.support.histories.steps import Step, named

SHORT_MS, LONG_MS = 1_000, 60_000
TIMEOUTS_MS = (SHORT_MS, SHORT_MS, LONG_MS)
# Not equal to session time-outs, as the state of a group depends on which of the two expires first.
REBALANCES_MS = (1_500, 1_500, LONG_MS)
PASSING_S = 3.0  # without a response; also ends a rebalance that begins when a session expires
HEARTBEAT_MS = 200  # below the session time-out
LOCK_MS, LOCKED_S = 3_000, 5.0  # fetches of a burst wait for up to 1.5 seconds
SHORT_LIVED = named("0")  # group whose members have short sessions
NEWER = ("consumer", "share", "streams")


class Passing(NamedTuple):
    """Times that pass in a history. Args: ``bursts``: of ``burst`` requests, after each of which ``steps`` follow."""

    bursts: int
    burst: int
    steps: Callable[[Draw], list[Step]]


def put_together(passing: Passing, draw: Draw, steps: list[Step]) -> list[Step]:
    """Return the steps with the time that passes after each burst."""
    bursts = [steps[at : at + passing.burst] for at in range(0, len(steps), passing.burst)]
    return [step for burst in bursts for step in (*burst, *passing.steps(draw))]


def classic_and_transactions(draw: Draw) -> list[Step]:
    """Return steps between which time passes until nothing is left to expire."""
    begun = Step("DescribeTransactions", 0, {"TransactionalIds": [named(each) for each in transactions.LABELS]})
    described = _described("DescribeGroups", 5)
    settled = replace(begun, settled=described)
    return [replace(described, settles_s=PASSING_S, settled=settled), described, groups.describe_consumer(draw), begun]


def sessions(_draw: Draw) -> list[Step]:
    """Return steps between which the members of one group expire."""
    described = _described("DescribeGroups", 5)
    kinds = [
        _described(f"{kind.title()}GroupDescribe", version) for kind, version in zip(NEWER, (1, 1, 0), strict=True)
    ]
    return [replace(described, settles_s=PASSING_S, settled=described), described, *kinds]


def locks(_draw: Draw) -> list[Step]:
    """Return a step after which locks of records expire."""
    return [replace(share.stored(share_fetch.GROUP), settles_s=LOCKED_S)]


def _described(api: str, version: int) -> Step:
    return Step(api, version, {"Groups" if api == "DescribeGroups" else "GroupIds": [named("0"), named("1")]})


# ---- requests


def join(draw: Draw) -> Step:
    step = classic.join(draw)
    step.body.update(SessionTimeoutMs=draw.one(TIMEOUTS_MS), RebalanceTimeoutMs=draw.one(REBALANCES_MS))
    return step


def heartbeat(draw: Draw) -> Step:
    """Return the heartbeat of a consumer that has a short or a long time to give its partitions up."""
    return _with_rebalance_timeout(draw, consumer.heartbeat(draw))


def streams_heartbeat(draw: Draw) -> Step:
    """Return the heartbeat of a streams member that has a short or a long time to give its tasks up."""
    return _with_rebalance_timeout(draw, streams.heartbeat(draw))


def _with_rebalance_timeout(draw: Draw, step: Step) -> Step:
    if step.body.get("RebalanceTimeoutMs", 0) > 0:
        step.body["RebalanceTimeoutMs"] = draw.one(REBALANCES_MS)
    return step


def begin(draw: Draw) -> Step:
    step = transactions.begin(draw)
    step.body["TransactionTimeoutMs"] = draw.one(TIMEOUTS_MS)
    return step


# ---- steps before the drawn ones


def begin_sessions(_draw: Draw) -> list[Step]:
    """Return the step that makes the sessions of one group short, whichever protocol its members use."""
    times_ms = {"session.timeout.ms": SHORT_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
    return [_set({f"{kind}.{name}": str(value) for kind in NEWER for name, value in times_ms.items()})]


def begin_locks(draw: Draw) -> list[Step]:
    """Return steps that start a share group whose records are locked for a short time."""
    return [_set({"share.record.lock.duration.ms": str(LOCK_MS)}), *share_fetch.begin(draw)]


def _set(configs: dict[str, str]) -> Step:
    rows = [{"Name": name, "ConfigOperation": SET, "Value": value} for name, value in configs.items()]
    resource = {"ResourceType": GROUP, "ResourceName": SHORT_LIVED, "Configs": rows}
    return Step("IncrementalAlterConfigs", 1, {"Resources": [resource]}, settles_s=share_fetch.APPLIED_S)


PASSING = {
    "elapsed": Passing(2, 6, classic_and_transactions),
    "elapsed-sessions": Passing(4, 8, sessions),
    "elapsed-joins": Passing(4, 6, classic_and_transactions),
    "elapsed-locks": Passing(4, 5, locks),
}
