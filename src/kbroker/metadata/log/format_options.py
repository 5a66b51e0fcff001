"""Options of the storage tool: levels of features and voters, with Kafka's checks in Kafka's words.

Source: ``StorageTool``, ``Formatter``, ``DynamicVoters``, ``DynamicVoter``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.common.configs.config_def import INT32_MAX
from kbroker.common.feature_versions import (
    DEFAULT_FROM,
    KRAFT_VERSION,
    LAST_LEVEL,
    LAST_STABLE_LEVEL,
    METADATA_VERSION,
    SCRAM_LEVEL,
    SERVED_LEVELS,
    check_levels,
    default_level,
    level_of_release,
    metadata_version_name,
)
from kbroker.common.java.java_values import parse_long
from kbroker.common.listeners import Listener
from kbroker.log.checkpoints import uuid_from_text
from kbroker.metadata.log.formatter import FormatError, make_voter
from kbroker.metadata.records.control_records import Voter

_INT16 = range(-(1 << 15), 1 << 15)
_DYNAMIC = "--standalone, --initial-controllers, or --no-initial-controllers"


def requested_levels(words: Iterable[str]) -> dict[str, int]:
    """Return the levels of ``feature=level`` words. Raises: FormatError."""
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise FormatError(f"Can't parse feature=level string {word}: equals sign not found.")
        level = parse_long(text.strip())
        if level is None or level not in _INT16:
            raise FormatError(f"Can't parse feature=level string {word}: unable to parse {text.strip()} as a short.")
        found[name.strip()] = level
    return found


def effective_levels(
    requested: Mapping[str, int], release: str | None, *, is_dynamic: bool, allow_unstable: bool
) -> dict[str, int]:
    """Return the level of every feature of a new cluster.

    Args:
        requested: levels by feature.
        release: version whose default levels the other features have; None: the latest.
        is_dynamic: the quorum is in the metadata log, not in ``controller.quorum.voters``.
        allow_unstable: levels of a later release are allowed.

    Raises: FormatError; FeatureLevelError.
    """
    level = None if release is None else level_of_release(release, allow_unstable=allow_unstable)
    if METADATA_VERSION in requested:
        if level is not None:
            raise FormatError(f"Use --release-version instead of --feature {METADATA_VERSION}=X to avoid ambiguity.")
        level = requested[METADATA_VERSION]
    if level is None:
        level = LAST_LEVEL if allow_unstable else LAST_STABLE_LEVEL
    name = metadata_version_name(level)
    if level > LAST_STABLE_LEVEL and not allow_unstable:
        raise FormatError(f"{METADATA_VERSION} {name} is not yet stable.")
    for feature in sorted(requested):
        if feature != METADATA_VERSION and feature not in DEFAULT_FROM:
            raise FormatError(
                f"Unsupported feature: {feature}. Supported features are: {', '.join(sorted(DEFAULT_FROM))}"
            )
    levels = {feature: default_level(feature, level) for feature in DEFAULT_FROM}
    levels.update(requested)
    levels[METADATA_VERSION] = level
    levels[KRAFT_VERSION] = _kraft_level(requested.get(KRAFT_VERSION), is_dynamic)
    check_levels(levels)
    return levels


def _kraft_level(requested: int | None, is_dynamic: bool) -> int:
    if requested is None:
        return SERVED_LEVELS[KRAFT_VERSION] if is_dynamic else 0
    if requested == 0 and is_dynamic:
        raise FormatError(
            f"Cannot set {KRAFT_VERSION} to 0 if controller.quorum.voters is empty and one of the flags {_DYNAMIC} is "
            f"used. For dynamic controllers support, try removing the --feature flag for {KRAFT_VERSION}."
        )
    if requested != 0 and not is_dynamic:
        raise FormatError(
            f"Cannot set {KRAFT_VERSION} to {requested} unless controller.quorum.voters is empty and one of the flags "
            f"{_DYNAMIC} is used. For dynamic controllers support, try using one of {_DYNAMIC} and removing "
            "controller.quorum.voters."
        )
    return requested


def check_credentials_level(levels: Mapping[str, int]) -> None:
    """Check that the level of metadata.version supports SCRAM credentials. Raises: FormatError."""
    if levels[METADATA_VERSION] < SCRAM_LEVEL:
        raise FormatError(
            f"SCRAM is only supported in {METADATA_VERSION} {metadata_version_name(SCRAM_LEVEL)} or later."
        )


def parse_voters(text: str, listener_name: str) -> list[Voter]:
    """Return the voters of comma-separated ``id@host:port:directory id`` words. Raises: FormatError.

    Args: ``listener_name``: the controllers' listener.
    """
    voters: dict[int, Voter] = {}
    for word in text.strip().split(","):
        if word:
            voter = _parse_voter(word.strip(), listener_name)
            if voters.setdefault(voter.id, voter) is not voter:
                raise FormatError(f"Node id {voter.id} was specified more than once.")
    if not voters:
        raise FormatError("No voters given.")
    return [voters[node_id] for node_id in sorted(voters)]


def _parse_voter(text: str, listener_name: str) -> Voter:
    id_text, at, rest = text.partition("@")
    if not at:
        raise FormatError("No @ found in dynamic voter string.")
    if not id_text:
        raise FormatError("Invalid @ at beginning of dynamic voter string.")
    node_id = parse_long(id_text)
    if node_id is None or not -INT32_MAX <= node_id <= INT32_MAX:
        raise FormatError("Failed to parse node id in dynamic voter string.")
    if node_id < 0:
        raise FormatError(f"Invalid negative node id {node_id} in dynamic voter string.")
    if not rest:
        raise FormatError("No hostname found after node id.")
    if rest.startswith("["):
        host, bracket, rest = rest[1:].partition("]")
        if not bracket:
            raise FormatError("Hostname began with left bracket, but no right bracket was found.")
    else:
        host, colon, rest = rest.partition(":")
        if not colon:
            raise FormatError("No colon following hostname could be found.")
        rest = f":{rest}"
    if not rest.startswith(":"):
        raise FormatError("Port section must start with a colon.")
    port_text, colon, id_text = rest[1:].partition(":")
    if not colon:
        raise FormatError("No colon following port could be found.")
    port = parse_long(port_text)
    if port is None or not -INT32_MAX <= port <= INT32_MAX:
        raise FormatError("Failed to parse port in dynamic voter string.")
    if not 0 <= port <= 65535:
        raise FormatError(f"Invalid port {port} in dynamic voter string.")
    try:
        directory_id = uuid_from_text(id_text)
    except ValueError:
        raise FormatError("Failed to parse directory ID in dynamic voter string.") from None
    return make_voter(node_id, directory_id, Listener(listener_name, "", host, port))
