"""Resources that have configs, changes to them, and sources of values. Source: ``ConfigResource``, ``ConfigEntry``."""

from __future__ import annotations

import enum
from typing import Literal, NamedTuple

from kbroker.common.errors import Errors, KafkaError


class ConfigResourceType(enum.IntEnum):
    """Kinds of resources that have configs, as numbered in requests and in metadata records."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(enum.IntEnum):
    """Source of a value, as DescribeConfigs numbers it; a lower number overrides a higher one."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigOperation(enum.IntEnum):
    """Operations of IncrementalAlterConfigs on a key; APPEND and SUBTRACT are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One key's change; ``value`` is ignored with DELETE."""

    name: str
    operation: int
    value: str | None = None


def check_broker_id(
    text: str,
    node_id: int,
    noun: Literal["Node", "Broker"] = "Node",
    unexpected: str = "Unexpected broker id, expected {0}, but received {1}",
) -> None:
    """Check that the name of a broker resource is the id of this node.

    Args: ``noun`` and ``unexpected``: words of the error, which vary in Kafka; the latter's fields are the node's id,
    the text and its number. Raises: KafkaError INVALID_REQUEST.
    """
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 11):
        raise KafkaError(Errors.INVALID_REQUEST, f"{noun} id must be an integer, but it is: {text}")
    if int(text) != node_id:
        raise KafkaError(Errors.INVALID_REQUEST, unexpected.format(node_id, text, int(text)))
