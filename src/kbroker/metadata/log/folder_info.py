"""Owner of the log folders of a node, and the faults that can be found without reading logs.

Source: ``StorageTool.infoCommand``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kbroker.log.checkpoints import (
    META_PROPERTIES,
    CorruptFileError,
    MetaProperties,
    read_meta_properties,
    uuid_to_text,
)


class FolderInfo(NamedTuple):
    """The existing folders, the owner of the first formatted one (None: none is formatted), and the problems found."""

    folders: Sequence[Path]
    owner: MetaProperties | None
    problems: Sequence[str]

    def lines(self) -> Iterator[str]:
        """Yield the lines that Kafka's tool prints."""
        if self.folders:
            yield from _section("Found log director", "y:", "ies:", self.folders)
        if self.owner is not None:
            yield f"Found metadata: {{{', '.join(_properties(self.owner))}}}"
            yield ""
        if self.problems:
            yield from _section("Found problem", ":", "s:", self.problems)


def folder_info(folders: Iterable[Path]) -> FolderInfo:
    """Return the existing folders, their owner and their problems. Raises: OSError."""
    found: list[Path] = []
    problems: list[str] = []
    first: MetaProperties | None = None
    for folder in folders:
        if not folder.is_dir():
            problems.append(f"{folder} {'is not a directory' if folder.exists() else 'does not exist'}")
            continue
        found.append(folder)
        try:
            owner = read_meta_properties(folder)
        except CorruptFileError as error:
            fault = str(error).removeprefix(f"{folder / META_PROPERTIES}: ")
            problems.append(f"Error loading {folder / META_PROPERTIES}: {fault}")
            continue
        if owner is None:
            problems.append(f"{folder} is not formatted.")
        elif first is None:
            first = owner
        elif first.cluster_id != owner.cluster_id:
            problems.append("Mismatched cluster IDs between storage directories.")
        elif first.node_id != owner.node_id:
            problems.append("Mismatched node IDs between storage directories.")
    if first is not None and first.version == 0:
        problems.append(
            "The kafka configuration file appears to be for a cluster in KRaft mode, but the directories are formatted "
            "for legacy mode."
        )
    return FolderInfo(found, first, problems)


def _section(title: str, of_one: str, of_many: str, items: Sequence[object]) -> Iterator[str]:
    yield title + (of_one if len(items) == 1 else of_many)
    for item in items:
        yield f"  {item}"
    yield ""


def _properties(owner: MetaProperties) -> Iterator[str]:
    """Yield the properties in the order of their names."""
    if owner.version == 0:
        yield f"broker.id={owner.node_id}"
    yield f"cluster.id={owner.cluster_id}"
    if owner.directory_id is not None:
        yield f"directory.id={uuid_to_text(owner.directory_id)}"
    if owner.version > 0:
        yield f"node.id={owner.node_id}"
    yield f"version={owner.version}"
