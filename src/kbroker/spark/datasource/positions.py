"""Start and end in the form of the options: a symbol, offsets or timestamps by partition, or one timestamp."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kbroker.client.admin import EARLIEST
from kbroker.common.topic_names import TopicPartition
from kbroker.spark.errors import PipelineError

OFFSETS_EXAMPLE = 'earliest, latest or a JSON object such as {"topic":{"0":23,"1":-2}} (-2 earliest, -1 latest)'
TIMESTAMPS_EXAMPLE = 'a JSON object such as {"topic":{"0":1767225600000}} (milliseconds since 1970)'
RESERVED = "#"  # first character of entries that are not topics, whose names cannot contain it


@dataclass(frozen=True)
class Positions:
    """Positions not yet looked up; exactly one of the forms is used.

    ``symbol`` is "earliest" or "latest" for every partition; ``offsets`` names each partition (EARLIEST and LATEST
    allowed); ``timestamp_ms`` is for every partition, ``timestamps_ms`` names each. ``strict``: a timestamp after the
    last record is an error instead of the end.
    """

    symbol: str | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    strict: bool = False
    option: str = ""


def parse_positions(option: str, text: str) -> Positions:
    """Read startingOffsets or endingOffsets. Raises: PipelineError with an example."""
    symbol = text.strip().lower()
    if symbol in ("earliest", "latest"):
        return Positions(symbol=symbol)
    return Positions(offsets=_by_partition(option, text, OFFSETS_EXAMPLE, EARLIEST), option=option)


def parse_timestamps(option: str, text: str, *, strict: bool) -> Positions:
    """Read startingOffsetsByTimestamp or endingOffsetsByTimestamp. Raises: PipelineError with an example."""
    return Positions(timestamps_ms=_by_partition(option, text, TIMESTAMPS_EXAMPLE, 0), strict=strict, option=option)


def parse_json_object(option: str, text: str, example: str) -> dict[str, Any]:
    """Return a JSON object without the reserved entries. Raises: PipelineError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PipelineError(f"{option} must be {example}, got {text!r}")
    return {name: value for name, value in found.items() if not name.startswith(RESERVED)}


def _by_partition(option: str, text: str, example: str, lowest: int) -> dict[TopicPartition, int]:
    positions: dict[TopicPartition, int] = {}
    for topic, partitions in parse_json_object(option, text, example).items():
        if not isinstance(partitions, dict):
            raise PipelineError(f"{option} must be {example}, got {text!r}")
        for partition, value in partitions.items():
            whole = isinstance(value, int) and not isinstance(value, bool) and lowest <= value < 1 << 63
            if not whole or not (partition.isascii() and partition.isdigit()):
                raise PipelineError(f"{option} must be {example}, got {text!r}")
            positions[topic, int(partition)] = value
    if not positions:
        raise PipelineError(f"{option} names no partition: it must be {example}")
    return positions
