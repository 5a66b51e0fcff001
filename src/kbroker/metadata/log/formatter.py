"""Format log folders as Kafka's kafka-storage tool does: their ids, and the first records of the metadata log.

Each folder gets ``bootstrap.checkpoint`` and ``meta.properties``; the metadata log's folder also a first snapshot with
the voters, unless they are those of ``controller.quorum.voters``. ``meta.properties`` is written last: a folder without
it counts as not formatted.
Source: ``Formatter``, ``MetaPropertiesEnsemble``, ``PropertiesUtils``, ``BootstrapDirectory``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kbroker.common.errors import UserError
from kbroker.common.feature_versions import KRAFT_VERSION, METADATA_VERSION, SERVED_LEVELS, metadata_version_name
from kbroker.common.java._string_hash import string_hash
from kbroker.common.java.java_hash import hash_order, int_hash
from kbroker.common.listeners import Listener
from kbroker.log.checkpoints import (
    CorruptFileError,
    MetaProperties,
    random_uuid_text,
    read_meta_properties,
    sync_folder,
    uuid_from_text,
    uuid_to_text,
    write_meta_properties,
)
from kbroker.metadata.image.partition_registration import RESERVED_IDS
from kbroker.metadata.log.metadata_log import FOLDER_NAME
from kbroker.metadata.records.control_records import KRaftVersion, Voter, VoterEndpoint, Voters
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT, snapshot_name, write_snapshot

READ_ONLY_MODE = 0o444  # mode of a snapshot file, as in Kafka


class FormatError(UserError, ValueError):
    """Folders that cannot be formatted; the text is Kafka's."""


class Formatted(NamedTuple):
    """The owners of all folders after the formatting, and the folders that were formatted."""

    owners: Mapping[Path, MetaProperties]
    new: Sequence[Path]


def standalone_voter(node_id: int, listener: Listener) -> Voter:
    """Return the only voter of a new quorum. Args: ``listener``: advertised address of the controller."""
    return make_voter(node_id, uuid_from_text(random_uuid_text()), listener)


def make_voter(node_id: int, directory_id: uuid.UUID, listener: Listener) -> Voter:
    """Return a voter. Args: ``directory_id``: that of its folder with the metadata log."""
    endpoint = VoterEndpoint(listener.name.upper(), _java_host(listener.host), listener.port)
    return Voter(node_id, directory_id, (endpoint,), 0, SERVED_LEVELS[KRAFT_VERSION])


def format_folders(
    folders: Iterable[Path],
    metadata_folder: Path,
    *,
    cluster_id: str,
    node_id: int,
    now_ms: int,
    voters: Sequence[Voter] = (),
    levels: Mapping[str, int] = SERVED_LEVELS,
    credentials: Sequence[MetadataRecord] = (),
    skip_formatted: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Formatted:
    """Format the folders that have no ``meta.properties`` yet, and create those that do not exist.

    Args:
        folders: the log folders.
        metadata_folder: the log folder with the metadata log.
        cluster_id, node_id: owner of the folders.
        now_ms: time of the records.
        voters: the quorum of kraft.version 1; empty: the node gets its voters from elsewhere.
        levels: finalized levels by feature, those of metadata.version and kraft.version among them.
        credentials: records of SCRAM credentials, appended to those of the levels.
        skip_formatted: leave formatted folders unchanged.
        report: called with each line that Kafka's tool prints.

    Raises: FormatError; OSError.
    """
    names = sorted(set(folders), key=str)
    if not names:
        raise FormatError("You must specify at least one directory to format")
    if metadata_folder not in names:
        given = f"[{', '.join(map(str, names))}]"
        raise FormatError(
            f"The specified metadata log directory, {metadata_folder} was not one of the given directories: {given}"
        )
    owners, unreadable = read_owners(names)
    verify_owners(owners, cluster_id, node_id)
    empty = [folder for folder in names if folder not in owners and folder not in unreadable]
    if owners and not skip_formatted:
        first = hash_order([*owners], _name_hash, is_presized=True, smallest_table=1)[0]
        raise FormatError(
            f"Log directory {first} is already formatted. Use --ignore-formatted to ignore this directory and format "
            "the others."
        )
    for folder in unreadable:
        report(f"I/O error trying to read log directory {folder}. Ignoring...")
    if not empty:
        if unreadable and not owners:
            raise FormatError("No available log directories to format.")
        report("All of the log directories are already formatted.")
        return Formatted(owners, ())
    records = [*feature_records(levels), *credentials]
    report(f"Bootstrap metadata: {_bootstrap_text(records)}")
    version = f"{METADATA_VERSION} {metadata_version_name(levels[METADATA_VERSION])}"
    ours = next((voter for voter in voters if voter.id == node_id), None)
    for folder in hash_order(empty, _name_hash):  # the order in which Kafka's tool reports them
        has_quorum = folder == metadata_folder and bool(voters)
        kind = "data directory"
        if folder == metadata_folder:
            kind = "dynamic metadata directory" if voters else "metadata directory"
        directory_id = _new_directory_id(owners.values())
        if has_quorum and ours is not None:
            kind, directory_id = "dynamic metadata voter directory", ours.directory_id
        report(f"Formatting {kind} {folder} with {version}.")
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        write_bootstrap(folder, records, now_ms)
        if has_quorum:
            write_voters(folder, voters, levels[KRAFT_VERSION], now_ms)
        owners[folder] = MetaProperties(cluster_id, node_id, directory_id)
        write_meta_properties(folder, owners[folder], now_ms)
    return Formatted(owners, empty)


def read_owners(folders: Iterable[Path]) -> tuple[dict[Path, MetaProperties], list[Path]]:
    """Return the owners of the folders that are formatted, and the folders whose ``meta.properties`` is unreadable."""
    owners, unreadable = {}, []
    for folder in folders:
        try:
            owner = read_meta_properties(folder)
        except (CorruptFileError, OSError):
            unreadable.append(folder)
            continue
        if owner is not None:
            owners[folder] = owner
    return owners, unreadable


def verify_owners(owners: Mapping[Path, MetaProperties], cluster_id: str, node_id: int) -> None:
    """Check that all folders belong to this node, each with its own directory id. Raises: FormatError."""
    seen: dict[uuid.UUID, Path] = {}
    for folder, owner in owners.items():
        try:
            owner.check(cluster_id, node_id, folder)
        except ValueError as error:
            raise FormatError(str(error)) from None
        directory_id = owner.directory_id
        if directory_id is None:
            continue
        if directory_id.int < RESERVED_IDS:
            raise FormatError(f"Invalid reserved directory ID {uuid_to_text(directory_id)} found in {folder}")
        if directory_id in seen:
            text = f"Optional[{uuid_to_text(directory_id)}]"
            raise FormatError(
                f"Duplicate directory ID {text} found. It was the ID of {seen[directory_id]}, but also of {folder}"
            )
        seen[directory_id] = folder


def feature_records(levels: Mapping[str, int]) -> list[MetadataRecord]:
    """Return the records of the levels, that of metadata.version first; kraft.version and level 0 have none."""
    names = [METADATA_VERSION, *sorted(set(levels) - {METADATA_VERSION, KRAFT_VERSION})]
    return [
        metadata_record("FeatureLevelRecord", {"Name": name, "FeatureLevel": levels[name]})
        for name in names
        if levels[name] > 0
    ]


def write_bootstrap(folder: Path, records: Iterable[MetadataRecord], now_ms: int) -> None:
    """Write the first records of the metadata log, which the controller appends to an empty one. Raises: OSError."""
    write_snapshot(folder / BOOTSTRAP_CHECKPOINT, records, now_ms)


def write_voters(folder: Path, voters: Sequence[Voter], kraft_level: int, now_ms: int) -> None:
    """Write the first snapshot of the metadata log, which contains the voters. Raises: OSError."""
    log_folder = folder / FOLDER_NAME
    log_folder.mkdir(exist_ok=True)
    path = log_folder / snapshot_name(0, 0)
    ordered = hash_order(sorted(voters), lambda voter: int_hash(voter.id), is_presized=True, smallest_table=1)
    control = (KRaftVersion(kraft_level), Voters(tuple(ordered)))
    write_snapshot(path, (), now_ms, last_contained_log_timestamp_ms=now_ms, control=control)
    path.chmod(READ_ONLY_MODE)


def _java_host(host: str) -> str:
    """Return a host as Kafka writes it: all groups of an IPv6 address, without leading zeros."""
    if ":" not in host:
        return host
    import ipaddress

    try:
        return ":".join(f"{int(group, 16):x}" for group in ipaddress.IPv6Address(host).exploded.split(":"))
    except ValueError:
        return host


def _new_directory_id(owners: Collection[MetaProperties]) -> uuid.UUID:
    while True:
        directory_id = uuid_from_text(random_uuid_text())
        if directory_id.int >= RESERVED_IDS and all(owner.directory_id != directory_id for owner in owners):
            return directory_id


def _name_hash(folder: Path) -> int:
    return string_hash(str(folder))


def _bootstrap_text(records: Sequence[MetadataRecord]) -> str:
    """Return the records as Kafka's tool prints them, but without the salts and keys of users."""
    texts = []
    for name, version, body in records:
        shown = {key: value for key, value in body.items() if not isinstance(value, bytes)}
        fields = ", ".join(
            f"{key[0].lower()}{key[1:]}={value!r}" if isinstance(value, int) else f"{key[0].lower()}{key[1:]}='{value}'"
            for key, value in shown.items()
        )
        texts.append(f"ApiMessageAndVersion({name}({fields}) at version {version})")
    level = next(body["FeatureLevel"] for _, _, body in records if body.get("Name") == METADATA_VERSION)
    return f"BootstrapMetadata(records=[{', '.join(texts)}], metadataVersionLevel={level}, source=format command)"
