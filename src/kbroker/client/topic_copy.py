"""Copies of topics to another cluster, each record exactly once, even when the copier is killed and started again.

The records of a transaction and the positions in the source are committed together: the positions are offsets of a
group in the target cluster, for the partitions there. A copier that starts again reads them after it has fenced the one
before it, whose open transaction the target's coordinator then aborts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kbroker.client.admin import EARLIEST, Admin, NewTopic, own_configs
from kbroker.client.cluster import Cluster, TopicMetadata
from kbroker.client.consumer import Consumer
from kbroker.client.groups import Groups
from kbroker.client.record_range import check_ends
from kbroker.client.transactional_producer import TransactionalProducer
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors, UserError, ignoring
from kbroker.common.topic_names import TopicPartition

#: Configs that a copy of a topic does not get: its records keep their timestamps, and its replicas are other brokers.
NOT_COPIED = frozenset(
    {
        "message.timestamp.type",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)
FETCH_BYTES = 4 << 20
TRANSACTION_BYTES = 64 << 20
TRANSACTION_S = 10.0  # the target's coordinator aborts it after 60 s


class CopyError(UserError):
    """A copy that cannot begin; the text has the reason and the remedy."""


@dataclass(frozen=True)
class Part:
    """One partition to copy. ``begin``: first offset in the source; ``end``: the offset after the last one."""

    source: TopicPartition
    target: TopicPartition
    begin: int
    end: int


class TopicCopier:
    """Copier of topics.

    Args:
        source, target: owned by the caller.
        names: topic in the target by topic in the source.
        copy_id: name of the progress, in the transactional id and the group in the target; None: the source's cluster
            id.
        read_committed: leave out the records of aborted and open transactions.
        codec: compression of the copies.
        transaction_records: records after which a transaction is committed.
        fetch_bytes: size of a response of the source for a partition.
        with_configs: give new topics the configs of their source.
        is_append: add to topics that have records, although no progress is known.

    Threads: one.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        names: Mapping[str, str],
        *,
        copy_id: str | None = None,
        read_committed: bool = True,
        codec: str = "none",
        transaction_records: int = 10_000,
        fetch_bytes: int = FETCH_BYTES,
        with_configs: bool = True,
        is_append: bool = False,
    ) -> None:
        self._source, self._target = source, target
        self._names = names
        self._read_committed = read_committed
        self._transaction_records = transaction_records
        self._fetch_bytes = fetch_bytes
        self._with_configs = with_configs
        self._is_append = is_append
        source_of: dict[str, str] = {}
        for name, copy in names.items():
            if (other := source_of.setdefault(copy, name)) != name:
                raise CopyError(f"{other} and {name} have the same copy {copy}: give each another name")
        for cluster in (source, target):
            cluster.fetch_metadata([])
        source_id = source.cluster_id
        if source_id is not None and source_id == target.cluster_id:
            same = next((name for name, copy in names.items() if name == copy), None)
            if same is not None:
                raise CopyError(f"{same}: source and target are the same cluster: give the copy another name")
        self.group_id = f"kbroker-copy-{copy_id or source_id}"
        self._producer = TransactionalProducer(target, self.group_id, codec=codec)
        self._topic_ids: dict[str, str] = {}
        self.parts: list[Part] = []
        self.made: list[str] = []

    def prepare(self) -> None:
        """Fence an earlier copier, create missing topics, and find where each partition begins and ends.

        Raises: CopyError, KafkaError, BrokerConnectionError.
        """
        self._producer.init_transactions()
        admin = Admin(self._source)
        topics = admin.describe_topics(self._names)
        for topic in topics:
            self._topic_ids[topic.name] = "" if topic.topic_id is None else topic.topic_id.hex
            self._make(topic, admin)
        places = [(topic.name, part.partition) for topic in topics for part in topic.partitions]
        starts = admin.offsets_at(places, EARLIEST)
        ends = admin.offsets_at(places, read_committed=self._read_committed)
        copies = {place: (self._names[place[0]], place[1]) for place in places}
        known = Groups(self._target).committed(self.group_id, copies.values(), require_stable=True)
        unknown = [place for place, copy in copies.items() if copy not in known]
        self._check_unknown([copies[place] for place in unknown])
        for place, copy in copies.items():
            begin = starts[place]
            if (committed := known.get(copy)) is not None:
                self._check_topic_id(place[0], committed.metadata or "")
                begin = max(begin, committed.offset)  # records before it are deleted by now
            self.parts.append(Part(place, copy, begin, max(begin, ends[place])))
        self._producer.begin_transaction()  # from now on a kill leaves a copy whose progress is known
        self._producer.send_offsets(self.group_id, self._progress({place: starts[place] for place in unknown}))
        self._producer.commit_transaction()

    def _progress(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, str]]:
        """Return positions in the source as offsets of the group."""
        return {(self._names[p[0]], p[1]): (position, self._topic_ids[p[0]]) for p, position in positions.items()}

    def run(self, *, is_endless: bool = False) -> Iterator[dict[TopicPartition, int]]:
        """Copy; yield the positions in the source after each transaction.

        Args: ``is_endless``: continue with new records. Raises: KafkaError, BrokerConnectionError; the records of
        the open transaction are then not committed.
        """
        ends = {part.source: part.end for part in self.parts}
        positions = {part.source: part.begin for part in self.parts if is_endless or part.begin < part.end}
        if not positions:
            return
        consumer = Consumer(
            self._source,
            positions,
            read_committed=self._read_committed,
            max_bytes=4 * self._fetch_bytes,
            max_partition_bytes=self._fetch_bytes,
        )
        while consumer.positions:
            before = dict(consumer.positions)
            self._copy_once(consumer, {} if is_endless else ends)
            if consumer.positions != before:
                yield dict(consumer.positions)
            elif not is_endless:
                check_ends(consumer, ends)
            if not is_endless:
                for place in [p for p, position in consumer.positions.items() if position >= ends[p]]:
                    del consumer.positions[place]

    def _copy_once(self, consumer: Consumer, ends: Mapping[TopicPartition, int]) -> None:
        """Copy the records of the next responses in one transaction, up to the ends of all partitions, if given."""
        before = dict(consumer.positions)
        count = byte_count = 0
        deadline = self._target.clock() + TRANSACTION_S
        self._producer.begin_transaction()
        try:
            while records := consumer.poll():
                for record in records:
                    self._producer.send(
                        self._names[record.topic],
                        record.value,
                        record.key,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=record.headers,
                    )
                count += len(records)
                byte_count += sum(len(record.value or b"") for record in records)
                is_full = count >= self._transaction_records or byte_count >= TRANSACTION_BYTES
                if is_full or self._target.clock() > deadline:
                    break
                if ends and all(position >= ends[p] for p, position in consumer.positions.items()):
                    break
            self._producer.flush()
            moved = {p: position for p, position in consumer.positions.items() if position != before[p]}
            self._producer.send_offsets(self.group_id, self._progress(moved))
            self._producer.commit_transaction()
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction()
        except Exception:
            return  # the target aborts it at its time-out, or when the next copier begins

    def _make(self, topic: TopicMetadata, admin: Admin) -> None:
        """Create the copy of a topic, or check its partitions. Raises: CopyError, KafkaError."""
        copy = self._names[topic.name]
        count = len(topic.partitions)
        configs: dict[str, str] = {}
        if self._with_configs:
            found = own_configs(admin.describe_configs(ConfigResourceType.TOPIC, topic.name))
            configs = {name: value for name, value in found.items() if value is not None and name not in NOT_COPIED}
        with ignoring(Errors.TOPIC_ALREADY_EXISTS):
            Admin(self._target).create_topics([NewTopic(copy, count, -1, configs)])
            self.made.append(copy)
        there = len(self._target.topic(copy).partitions)
        if there < count:
            raise CopyError(
                f"{copy}: expected {count} partitions in the target, as {topic.name} has, found {there}: add partitions"
            )

    def _check_unknown(self, copies: list[TopicPartition]) -> None:
        """Refuse topics that have records from elsewhere, or from a copy whose progress is lost. Raises: CopyError."""
        if self._is_append or not copies:
            return
        admin = Admin(self._target)
        starts, ends = admin.offsets_at(copies, EARLIEST), admin.offsets_at(copies)
        for place in copies:
            if starts[place] < ends[place]:
                raise CopyError(
                    f"{place[0]}-{place[1]} has records in the target, and group {self.group_id} has no offset for it: "
                    "give --append to copy all records after them"
                )

    def _check_topic_id(self, name: str, known: str) -> None:
        if known and self._topic_ids[name] and known != self._topic_ids[name]:
            raise CopyError(
                f"{name} was deleted and created again since the last copy: give another --id, and --append or another "
                "name, to copy it from its beginning"
            )
