"""How far readers are behind: consumer groups, and Spark streams by their checkpoints. Needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbroker.client.admin import TopicPartition
from kbroker.client.cluster import Cluster
from kbroker.client.groups import CLASSIC, CONSUMER, Groups
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.table_place import TablePlace

#: A folder of this machine, or a place in a store, for which pyarrow and deltalake are needed.
Folder = Path | TablePlace
GROUP, CHECKPOINT = "group", "checkpoint"


@dataclass(frozen=True, slots=True)
class Lag:
    """One partition of a reader. `offset`: the next it will read; None, as `lag`, where that is not known."""

    kind: str
    reader: str
    topic: str
    partition: int
    offset: int | None
    end_offset: int | None
    lag: int | None


def group_lag(cluster: Cluster, names: Iterable[str] = ()) -> list[Lag]:
    """Of the partitions that groups have committed or are assigned. Args: `names`: none for all groups.

    Raises: KafkaError, among others GROUP_ID_NOT_FOUND; BrokerConnectionError.
    """
    groups = Groups(cluster)
    wanted = list(names) or [g.group_id for g in groups.list_groups() if g.group_type in (CLASSIC, CONSUMER)]
    found: list[Lag] = []
    for name in wanted:
        committed: dict[TopicPartition, int | None] = {
            place: None for member in groups.describe(name).members for place in member.assignment
        }
        committed.update({place: commit.offset for place, commit in groups.committed(name).items()})
        found += _rows(GROUP, name, committed, groups)
    return found


def checkpoint_lag(cluster: Cluster, folder: Folder) -> list[Lag]:
    """Of the topics that the stream behind a checkpoint reads: what its committed batches have not read.

    Args: `folder`: a checkpoint, or a table of `ingest` or `archive` with one inside.
    Raises: PipelineError for a folder without a checkpoint, or of a stream that reads no topic; OSError.
    """
    offsets = read_checkpoint(folder)
    return _rows(CHECKPOINT, str(folder), offsets, Groups(cluster))


def _rows(kind: str, reader: str, offsets: Mapping[TopicPartition, int | None], groups: Groups) -> list[Lag]:
    ends = groups.end_offsets(offsets)
    rows = []
    for topic, partition in sorted(offsets):
        offset = offsets[topic, partition]
        end = ends[topic, partition].offset if (topic, partition) in ends else None
        lag = None if offset is None or end is None else max(0, end - offset)
        rows.append(Lag(kind, reader, topic, partition, offset, end, lag))
    return rows


def read_checkpoint(folder: Folder) -> dict[TopicPartition, int | None]:
    """The next offset of each partition after the last batch that was committed.

    Before the first one, offset 0 is not assumed: partitions of a batch that is planned only are None. Understood are
    checkpoints of Spark's Kafka connector and of `format("kbroker")`.
    """
    place = Path(folder.uri) if isinstance(folder, TablePlace) and folder.is_local else folder
    planned = _numbers(place, "_checkpoint/offsets")
    inside = "_checkpoint/" if planned is not None else ""
    if planned is None:
        planned = _numbers(place, "offsets")
    if planned is None:
        raise PipelineError(f"{folder} is no checkpoint of a stream: it has no folder offsets")
    committed = set(_numbers(place, f"{inside}commits") or ())
    done = [number for number in planned if number in committed]
    if not planned:
        return {}
    batch = max(done) if done else max(planned)
    found: dict[TopicPartition, int | None] = {}
    sources = list(_sources(place, f"{inside}offsets/{batch}"))
    for offsets in sources:
        found.update({where: offset if done else None for where, offset in _topics(offsets)})
    if not found and any(source for source in sources):
        raise PipelineError(f"the stream of {folder} reads no topic")
    return found


def _numbers(place: Folder, folder: str) -> list[int] | None:
    """Of the batches that a folder has a file of; None if there is no such folder, in a store also of an empty one."""
    if isinstance(place, Path):
        names = [file.name for file in (place / folder).iterdir()] if (place / folder).is_dir() else None
    else:
        names = [name.rpartition("/")[2] for name, _ in place.listed(folder)] or None
    return None if names is None else [int(name) for name in names if name.isdigit()]


def _sources(place: Folder, file: str) -> Iterable[Any]:
    """The offset of each source in an entry of Spark's offset log: v1, then a line of metadata, then one per source."""
    text = (place / file).read_text(encoding="utf-8") if isinstance(place, Path) else place.read(file).decode()
    lines = text.splitlines()
    if not lines or lines[0] != "v1":
        raise PipelineError(f"{place}/{file} is of a format that is not known: {lines[:1]}")
    for line in lines[2:]:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            yield {}  # no source, or one that writes no JSON ("-", or a number)


def _topics(offsets: Any) -> Iterable[tuple[TopicPartition, int]]:
    """Entries that are topics: names with a map of partition numbers to offsets. Others are the source's own."""
    for topic, partitions in offsets.items() if isinstance(offsets, dict) else ():
        if isinstance(partitions, dict) and not topic.startswith("#"):
            for partition, offset in partitions.items():
                if partition.isdigit() and isinstance(offset, int):
                    yield (topic, int(partition)), offset
