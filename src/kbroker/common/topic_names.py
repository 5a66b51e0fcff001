"""Names of topics: the internal ones, Kafka's rules for a name, and the type of a topic-partition."""

from __future__ import annotations

import re

#: A topic's name and a partition's number.
TopicPartition = tuple[str, int]

CLUSTER_METADATA_TOPIC = "__cluster_metadata"  # Kafka's metadata log; clients cannot create a topic of this name
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC})
MAX_NAME_LENGTH = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def invalid_name_reason(name: str) -> str | None:
    """Return the reason why ``name`` is not a legal topic name, or None if it is legal. Source: ``Topic.validate``."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if _LEGAL.fullmatch(name) is None:
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None
