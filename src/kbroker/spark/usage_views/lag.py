"""Lag of consumer groups, and of Spark streams by their checkpoints. Needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbroker.client.cluster import Cluster
from kbroker.client.groups import WITH_OFFSETS, Groups
from kbroker.common.topic_names import TopicPartition
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.table_place import TablePlace

#: A folder of this machine, or a place in a store, for which pyarrow and deltalake are needed.
Folder = Path | TablePlace
GROUP, CHECKPOINT = "group", "checkpoint"


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of a reader on one partition. `offset`: the next one to read; None, like `lag`, if unknown."""

    kind: str
    reader: str
    topic: str
    partition: int
    offset: int | None
    end_offset: int | None
    lag: int | None


def group_lag(cluster: Cluster, names: Iterable[str] = ()) -> list[Lag]:
    """Return the lag of groups on partitions that are committed or assigned. Args: `names`: none for all groups.

    Raises: KafkaError, among others GROUP_ID_NOT_FOUND; BrokerConnectionError.
    """
    groups = Groups(cluster)
    wanted = list(names) or [g.group_id for g in groups.list_groups() if g.group_type in WITH_OFFSETS]
    found: list[Lag] = []
    for name in wanted:
        committed: dict[TopicPartition, int | None] = {
            place: None for member in groups.describe(name).members for place in member.assignment
        }
        committed.update({place: commit.offset for place, commit in groups.committed(name).items()})
        found += _rows(GROUP, name, committed, groups)
    return found


def checkpoint_lag(cluster: Cluster, folder: Folder) -> list[Lag]:
    """Return the lag of the stream of a checkpoint: the records that its committed batches have not read.

    Args: `folder`: a checkpoint, or a table of `ingest` or `archive` with one inside.
    Raises: PipelineError for a folder without a checkpoint, or a stream that reads no topic; OSError.
    """
    offsets = read_checkpoint(folder)
    return _rows(CHECKPOINT, str(folder), offsets, Groups(cluster))


def _rows(kind: str, reader: str, offsets: Mapping[TopicPartition, int | None], groups: Groups) -> list[Lag]:
    ends = groups.end_offsets(offsets)
    rows = []
    for topic, partition in sorted(offsets):
        offset, end = offsets[topic, partition], ends.get((topic, partition))
        lag = None if offset is None or end is None else max(0, end - offset)
        rows.append(Lag(kind, reader, topic, partition, offset, end, lag))
    return rows


def read_checkpoint(folder: Folder) -> dict[TopicPartition, int | None]:
    """Return the next offset of each partition after the last committed batch.

    Without one, the partitions of the planned batch have None rather than 0. The checkpoint may be of Spark's Kafka
    connector or of `format("kbroker")`.

    Raises: PipelineError if the folder is not a checkpoint, or its stream reads no topic; OSError.
    """
    place = Path(folder.uri) if isinstance(folder, TablePlace) and folder.is_local else folder
    planned = _numbers(place, "_checkpoint/offsets")
    inside = "_checkpoint/" if planned is not None else ""
    if planned is None:
        planned = _numbers(place, "offsets")
    if planned is None:
        raise PipelineError(f"{folder} is not a checkpoint of a stream: it has no folder offsets")
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
    """Return the batches that have a file in a folder; None without the folder, or if it is empty in a store."""
    if isinstance(place, Path):
        names = [file.name for file in (place / folder).iterdir()] if (place / folder).is_dir() else None
    else:
        names = [name.rpartition("/")[2] for name, _ in place.listed(folder)] or None
    return None if names is None else [int(name) for name in names if name.isdigit()]


def _sources(place: Folder, file: str) -> Iterable[Any]:
    """Yield each source's offset in an entry of Spark's offset log, {} if it is not JSON. Raises: PipelineError."""
    text = (place / file).read_text(encoding="utf-8") if isinstance(place, Path) else place.read(file).decode()
    lines = text.splitlines()
    if not lines or lines[0] != "v1":
        raise PipelineError(f"{place}/{file} is in an unknown format: expected v1, got {lines[:1]}")
    for line in lines[2:]:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            yield {}  # no source, or one that does not write JSON ("-", or a number)


def _topics(offsets: Any) -> Iterable[tuple[TopicPartition, int]]:
    """Yield the entries that are topics: names with a map of partitions to offsets. Others are the source's own."""
    for topic, partitions in offsets.items() if isinstance(offsets, dict) else ():
        if isinstance(partitions, dict) and not topic.startswith("#"):
            for partition, offset in partitions.items():
                if partition.isdigit() and isinstance(offset, int):
                    yield (topic, int(partition)), offset
