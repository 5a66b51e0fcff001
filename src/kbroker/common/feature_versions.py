"""Features of Apache Kafka (KIP-584): names of the levels of metadata.version, and default and supported levels.

Source: ``MetadataVersion``, ``Feature`` and its versions, of Kafka 4.0 to 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kbroker.common.errors import UserError

METADATA_VERSION, KRAFT_VERSION, GROUP_VERSION = "metadata.version", "kraft.version", "group.version"
TRANSACTION_VERSION, SHARE_VERSION, STREAMS_VERSION = "transaction.version", "share.version", "streams.version"
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"

#: The first and the last level that Kafka 4.3 allows; the levels after it need unstable.feature.versions.enable.
FIRST_LEVEL, LAST_STABLE_LEVEL = 7, 30
_NAMES = (
    *("3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2"),
    *("3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0"),
    *("4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0", "4.4-IV0"),
)
#: Level of metadata.version to its name.
METADATA_VERSIONS: Mapping[int, str] = dict(enumerate(_NAMES, FIRST_LEVEL))
LAST_LEVEL = max(METADATA_VERSIONS)
#: First level of metadata.version with each of these contents of the metadata log; TRANSACTIONS: around its records.
ZK_MIGRATION_LEVEL, SCRAM_LEVEL, TRANSACTIONS_LEVEL, DELEGATION_TOKENS_LEVEL = 8, 11, 13, 14
CONTROLLERS_LEVEL, DIRECTORIES_LEVEL, ELIGIBLE_REPLICAS_LEVEL, CORDONED_LEVEL = 15, 17, 23, 30
#: Levels with records that an earlier level lacks: Kafka refuses to go below them.
METADATA_CHANGES = (
    *(FIRST_LEVEL, ZK_MIGRATION_LEVEL, SCRAM_LEVEL, TRANSACTIONS_LEVEL, DELEGATION_TOKENS_LEVEL),
    *(CONTROLLERS_LEVEL, DIRECTORIES_LEVEL, ELIGIBLE_REPLICAS_LEVEL, CORDONED_LEVEL),
)

#: For each feature, the level of metadata.version from which on each of its levels 1, 2, ... is the default.
DEFAULT_FROM: Mapping[str, tuple[int, ...]] = {
    ELIGIBLE_LEADER_REPLICAS: (26,),
    GROUP_VERSION: (22,),
    KRAFT_VERSION: (21,),
    SHARE_VERSION: (28,),
    STREAMS_VERSION: (29,),
    TRANSACTION_VERSION: (24, 24),
}
_NEEDED: Mapping[tuple[str, int], tuple[str, int]] = {
    (ELIGIBLE_LEADER_REPLICAS, 1): (METADATA_VERSION, ELIGIBLE_REPLICAS_LEVEL),
}

_SINCE_4_0 = {KRAFT_VERSION: 1, TRANSACTION_VERSION: 2, GROUP_VERSION: 1, ELIGIBLE_LEADER_REPLICAS: 1}
#: Highest level of each feature in a release of Kafka; a feature that is missing is unknown to it.
RELEASES: Mapping[str, Mapping[str, int]] = {
    "4.0": {METADATA_VERSION: 25, **_SINCE_4_0},
    "4.1": {METADATA_VERSION: 27, **_SINCE_4_0, SHARE_VERSION: 1, STREAMS_VERSION: 0},
    "4.2": {METADATA_VERSION: 29, **_SINCE_4_0, SHARE_VERSION: 1, STREAMS_VERSION: 1},
    "4.3": {METADATA_VERSION: LAST_STABLE_LEVEL, **_SINCE_4_0, SHARE_VERSION: 1, STREAMS_VERSION: 1},
}
LATEST_RELEASE = max(RELEASES)
#: Highest level of each feature that kbroker serves. It finalizes no others, so that clients do not use them.
SERVED_LEVELS: Mapping[str, int] = {
    name: level for name, level in RELEASES[LATEST_RELEASE].items() if name != ELIGIBLE_LEADER_REPLICAS
}


def unserved(features: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence on each finalized feature with a level that kbroker does not serve."""
    for name, level in sorted(features.items()):
        served = min(level, SERVED_LEVELS.get(name, 0))
        if served != level:
            text = f"{name} is finalized at level {level}, which kbroker does not serve"
            yield f"{text}: it is kept, and level {served} is served"


class FeatureLevelError(UserError, ValueError):
    """A level that a feature cannot have; the text is Kafka's."""


def level_of_release(text: str, *, allow_unstable: bool) -> int:
    """Return the level of metadata.version of ``4.3``, ``4.3.1`` or ``4.3-IV0``. Raises: FeatureLevelError."""
    segments = text.rstrip(".").split(".")
    key = text if len(segments) <= 2 else ".".join(segments[:2])
    last = LAST_LEVEL if allow_unstable else LAST_STABLE_LEVEL
    for level in range(last, FIRST_LEVEL - 1, -1):
        name = METADATA_VERSIONS[level]
        if key == name or (level <= LAST_STABLE_LEVEL and key == name.partition("-")[0]):
            return level
    known = ", ".join(METADATA_VERSIONS[level] for level in range(FIRST_LEVEL, last + 1))
    raise FeatureLevelError(f"Unknown metadata.version '{text}'. Supported metadata.version are: {known}")


def level_text(feature: str, level: int) -> str:
    """Return a level, with its name if it has one."""
    name = METADATA_VERSIONS.get(level) if feature == METADATA_VERSION else None
    return f"{level} ({name})" if name else str(level)


def metadata_version_name(level: int) -> str:
    """Return the name of a level of metadata.version. Raises: FeatureLevelError."""
    if level not in METADATA_VERSIONS:
        raise FeatureLevelError(
            f"No MetadataVersion with feature level {level}. "
            f"Valid feature levels are from {FIRST_LEVEL} to {LAST_LEVEL}."
        )
    return METADATA_VERSIONS[level]


def default_level(feature: str, metadata_level: int) -> int:
    """Return the level that Kafka gives a feature of a new cluster, at a level of metadata.version."""
    return sum(first <= metadata_level for first in DEFAULT_FROM[feature])


def check_levels(levels: Mapping[str, int]) -> None:
    """Check the level of every feature but metadata.version, in the order of names. Raises: FeatureLevelError."""
    for name, level in sorted(levels.items()):
        if name == METADATA_VERSION:
            continue
        if not 0 <= level <= len(DEFAULT_FROM[name]):
            raise FeatureLevelError(f"No feature:{name} with feature level {level}")
        needed, least = _NEEDED.get((name, level), (METADATA_VERSION, 0))
        if levels.get(needed, 0) < least:
            raise FeatureLevelError(f"{name} could not be set to {level} because it depends on {needed} level {least}")
