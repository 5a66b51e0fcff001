"""Keys that several kinds of groups have, and the bounds of the configs of single groups."""

from __future__ import annotations

from typing import Literal

from kbroker.common.configs.config_def import ConfigKey, Validator, between, key


def bound_name(name: str, bound: Literal["min", "max"]) -> str:
    """Return the broker's key that bounds a group config: group.share.min.session.timeout.ms, for example."""
    kind, _, config = name.partition(".")
    return f"group.{kind}.{bound}.{config.removeprefix('num.')}"


def with_bounds(
    of_all: ConfigKey, low: int, high: int, low_check: Validator | None = None, high_check: Validator | None = None
) -> tuple[ConfigKey, ConfigKey, ConfigKey]:
    """Return the broker's key for all groups of a kind, and the keys of its bounds, by default with the same check."""
    name = of_all.name.removeprefix("group.")
    return (
        of_all,
        key(bound_name(name, "min"), "int", low, f"Minimum of {name} of a group.", low_check or of_all.validator),
        key(bound_name(name, "max"), "int", high, f"Maximum of {name} of a group.", high_check or of_all.validator),
    )


def member_keys(kind: str, assignment_importance: Literal["medium", "low"] = "medium") -> tuple[ConfigKey, ...]:
    """Return the keys of session timeout, heartbeat interval and assignment interval for a kind of groups."""
    session = key(
        f"group.{kind}.session.timeout.ms",
        "int",
        45_000,
        f"Milliseconds without a heartbeat after which a member of a {kind} group is removed.",
        between(1),
    )
    heartbeat = key(
        f"group.{kind}.heartbeat.interval.ms",
        "int",
        5000,
        f"Milliseconds between two heartbeats of a member of a {kind} group.",
        between(1),
    )
    assignment = key(
        f"group.{kind}.assignment.interval.ms",
        "int",
        1000,
        f"Minimum milliseconds between two target assignments of a {kind} group.",
        between(0),
        dynamic="cluster-wide",
        importance=assignment_importance,
    )
    return (
        *with_bounds(session, 45_000, 60_000),
        *with_bounds(heartbeat, 5000, 15_000),
        *with_bounds(assignment, 0, 15_000),
    )
