"""Requests of the driver to the cluster: topics, first and last offsets of their logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from kbroker.client.admin import EARLIEST, LATEST, Admin
from kbroker.client.cluster import UNKNOWN_TOPIC_PATIENCE_S, Cluster, TopicMetadata, check
from kbroker.common.errors import Errors, ignoring
from kbroker.common.topic_names import TopicPartition
from kbroker.spark.datasource.options import ReadOptions, Topics
from kbroker.spark.datasource.positions import Positions
from kbroker.spark.errors import PipelineError

CHANGES_FOLLOWED = 5  # maximum number of look-ups while the topics change


@dataclass(frozen=True)
class Found:
    """Partitions as they are now: the id of each topic (where brokers give one) and, per partition, its offset."""

    topic_ids: Mapping[str, UUID]
    offsets: Mapping[TopicPartition, int]


class Lookup:
    """Offsets and topics of one cluster, with as few connections and requests as possible.

    End offsets are kept for ``end_offsets_age_s``, topics for ``metadata_age_s``. When an end offset has moved, the
    topics are looked up again afterwards: if they are unchanged, the offsets belong to them.

    Args:
        cluster: not owned.
        options: topics and offsets to read.

    Raises: KafkaError, BrokerConnectionError; PipelineError for topics that do not exist.

    Threads: as its Cluster.
    """

    def __init__(self, cluster: Cluster, options: ReadOptions) -> None:
        self.cluster = cluster
        self._options = options
        self._admin = Admin(cluster)
        self._topics: dict[str, TopicMetadata] = {}
        self._topics_at_s: float | None = None
        self._ends: Found | None = None
        self._ends_at_s = 0.0

    # ---- topics

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions to read, in order; topics are at most ``metadata_age_s`` old. Raises: PipelineError."""
        now_s = self.cluster.clock()
        if self._topics_at_s is None or now_s - self._topics_at_s >= self._options.metadata_age_s:
            self._look_up()
        wanted = self._options.topics
        known = {(name, p.partition) for name, topic in self._topics.items() for p in topic.partitions}
        if not wanted.assigned:
            return sorted(known)
        for topic, partition in wanted.assigned:
            if topic in self._topics and (topic, partition) not in known:
                raise PipelineError(f"assign names partition {partition} of topic {topic!r}, which it does not have")
        return sorted(known & set(wanted.assigned))

    def topic_ids(self) -> dict[str, UUID]:
        """Return the ids of the topics last looked up."""
        return {name: topic.topic_id for name, topic in self._topics.items() if topic.topic_id is not None}

    def _look_up(self) -> None:
        wanted = self._options.topics
        names = _names(wanted)
        if wanted.pattern is not None:
            pattern = re.compile(wanted.pattern)
            found = [
                t for t in self.cluster.retry(lambda: self.cluster.fetch_metadata(None)) if pattern.fullmatch(t.name)
            ]
        else:
            found = self._named(names)
        self._topics = {topic.name: topic for topic in found if topic.error is Errors.NONE}
        self._topics_at_s = self.cluster.clock()

    def _named(self, names: list[str]) -> list[TopicMetadata]:
        found: list[TopicMetadata] = []

        def attempt() -> None:
            found[:] = self.cluster.fetch_metadata(names)
            for topic in found:
                check(topic.error, f"topic {topic.name!r}")

        with ignoring(Errors.UNKNOWN_TOPIC_OR_PARTITION):
            self.cluster.retry(attempt, timeout_s=min(UNKNOWN_TOPIC_PATIENCE_S, self.cluster.retry_timeout_s))
        return found

    def missing(self) -> list[str]:
        """Return the topics named by the options that did not exist when last looked up."""
        return [name for name in _names(self._options.topics) if name not in self._topics]

    # ---- offsets

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each log."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each log: the last stable offset if only committed records are read."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def at_time(self, partitions: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a time in each log; -1 without such a record."""
        return self._offsets(dict.fromkeys(partitions, time_ms))

    def ends(self, *, fresh: bool = False) -> Found:
        """Return the ends of all partitions, with ``fresh`` of now, else at most as old as the options allow.

        Raises: PipelineError.
        """
        age_s = self.cluster.clock() - self._ends_at_s
        if self._ends is not None and not fresh and age_s < self._options.end_offsets_age_s:
            return self._ends
        if fresh:
            self._topics_at_s = None
        partitions = self.partitions()
        for _ in range(CHANGES_FOLLOWED):
            ids, offsets = self.topic_ids(), self._latest_of_those_left(partitions)
            if self._ends is not None and offsets == self._ends.offsets:
                break
            self._topics_at_s = None
            partitions = self.partitions()
            if list(offsets) == partitions and ids == self.topic_ids():
                break
        else:
            raise PipelineError("topics were deleted or created faster than they could be looked up; start again")
        self._ends, self._ends_at_s = Found(ids, offsets), self.cluster.clock()
        return self._ends

    def _latest_of_those_left(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        with ignoring(Errors.UNKNOWN_TOPIC_OR_PARTITION):
            return self.latest(partitions)
        return {}  # deleted meanwhile, as the next look-up of the topics will show

    def last_ends(self) -> Found | None:
        """Return the latest result of ``ends``, without a request; None before the first."""
        return self._ends

    def resolve(self, positions: Positions, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of each partition for the value of an option.

        Raises: PipelineError if it does not name exactly these partitions, or, if strict, no record is recent enough.
        """
        if positions.symbol is not None:
            return self.earliest(partitions) if positions.symbol == "earliest" else self.latest(partitions)
        if positions.offsets:
            _check_names(positions.option, positions.offsets, partitions)
            symbolic = {tp: offset for tp, offset in positions.offsets.items() if offset < 0}
            return {**positions.offsets, **(self._offsets(symbolic) if symbolic else {})}
        if positions.timestamps_ms:
            _check_names(positions.option, positions.timestamps_ms, partitions)
        wanted = positions.timestamps_ms or dict.fromkeys(partitions, positions.timestamp_ms or 0)
        found = self._offsets(wanted)
        late = [tp for tp, offset in found.items() if offset < 0]
        if late and positions.strict:
            (topic, partition), *others = late
            raise PipelineError(
                f"{positions.option}: partition {topic}-{partition} has no record at or after {wanted[late[0]]}"
                + (f" (nor have {len(others)} others)" if others else "")
                + "; set startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        return {**found, **(self.latest(late) if late else {})}

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = self._admin.list_offsets(wanted, read_committed=self._options.fetch.read_committed)
        return {tp: found[tp].offset for tp in sorted(found)}


def _names(topics: Topics) -> list[str]:
    return list(dict.fromkeys([*topics.names, *(topic for topic, _ in topics.assigned)]))


def _check_names(option: str, named: Iterable[TopicPartition], partitions: list[TopicPartition]) -> None:
    missing, unknown = sorted(set(partitions) - set(named)), sorted(set(named) - set(partitions))
    if missing or unknown:
        what = [f"lacks {listed(missing)}"] * bool(missing) + [f"names {listed(unknown)}, not read"] * bool(unknown)
        raise PipelineError(f"{option} must name every partition that is read and no other: it {' and '.join(what)}")


def listed(partitions: list[TopicPartition]) -> str:
    """Return the names of the first five partitions, and the number of the others."""
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in partitions[:5])
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"
