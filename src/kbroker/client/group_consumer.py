"""A synchronous member of a consumer group that reads one topic and shares it with the other members.

It joins, sends heartbeats and rejoins inside `poll`: if the caller does not poll for longer than the session time-out,
the group removes this member until its next poll.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.client.admin import LATEST
from kbroker.client.cluster import Closing, Cluster
from kbroker.client.consumer import Consumer, Record
from kbroker.client.group_members import CLASSIC_ONLY, REJOINS, ClassicMember, ConsumerMember, leave_quietly
from kbroker.client.groups import Groups
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition


class GroupConsumer(Closing):
    """Group member that reads its assigned partitions of a topic, from the committed offsets on.

    Args:
        cluster: owned by the caller.
        group_id: the group; it is created if it does not exist.
        topic: the topic to read.
        start: EARLIEST or LATEST, for a partition without a committed offset, and for one whose offset is deleted.
        read_committed: leave out aborted transactions, end at the last stable offset.
        max_wait_ms: time that one poll may wait for records.

    Raises: KafkaError, such as UNKNOWN_TOPIC_OR_PARTITION, GROUP_AUTHORIZATION_FAILED; with a broker or a group that
        has the classic protocol only: INCONSISTENT_GROUP_PROTOCOL if the other members do not offer "range",
        UNSUPPORTED_VERSION before Kafka 2.5.

    Threads: as its Cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        topic: str,
        *,
        start: int = LATEST,
        read_committed: bool = False,
        max_wait_ms: int = 500,
    ) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self.start = start
        self.read_committed = read_committed
        self.max_wait_ms = max_wait_ms
        self._groups = Groups(cluster)
        self._member: ConsumerMember | ClassicMember = ConsumerMember(self._groups, group_id, topic)
        self._consumer = self._new_consumer()
        self._is_joined = False
        self._reads: tuple[TopicPartition, ...] | None = None  # the assignment that is read; None before reading begins
        self._heartbeat_at_s = 0.0
        cluster.topic(topic)

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that are currently assigned to this member."""
        return self._member.assignment

    def join(self) -> None:
        """Join the group unless this member is in it, as `poll` does, without fetching."""
        while not self._is_joined:
            try:
                self._member.join()
            except KafkaError as failure:
                if failure.error in CLASSIC_ONLY and isinstance(self._member, ConsumerMember):
                    self._member = ClassicMember(self._groups, self.group_id, self._member.topic)
                elif failure.error not in REJOINS:
                    raise
                continue
            self._is_joined = True
            self._start_reading()

    def poll(self) -> list[Record]:
        """Return the records of one fetch, perhaps none; join the group first if necessary.

        Records that were returned before a rebalance and not committed are returned again, to this member or another.
        """
        if self._is_joined and self.cluster.clock() >= self._heartbeat_at_s:
            self._heartbeat()
        self.join()
        if self._reads != self.assignment:  # an earlier poll failed before reading could begin
            self._start_reading()
        if not self.assignment:
            self.cluster.sleep(min(self.max_wait_ms / 1000, self._member.interval_s))
            return []
        return self._consumer.poll()

    def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit offsets: for each assigned partition, the offset of the next record to read; others are ignored.

        Returns: False if the group has removed this member, which rejoins at the next poll; its offsets are rejected.
        """
        for error in (Errors.STALE_MEMBER_EPOCH, Errors.NONE):
            mine = {tp: offset for tp, offset in offsets.items() if tp in self.assignment}
            if not self._is_joined or not mine:
                break
            member = self._member
            try:
                self._groups.commit(self.group_id, mine, generation_id=member.epoch, member_id=member.member_id)
                break
            except KafkaError as failure:
                if failure.error is error:  # a heartbeat whose response was lost has raised the epoch
                    self._heartbeat()
                else:
                    self._rejoin_after(failure)
        return self._is_joined

    def close(self) -> None:
        """Leave the group, so that the others get the partitions at once. Idempotent."""
        if self._member.epoch > 0:
            leave_quietly(self._member)
        self._is_joined = False

    def _heartbeat(self) -> None:
        try:
            is_changed = self._member.heartbeat()
        except KafkaError as failure:
            self._rejoin_after(failure)
            return
        self._heartbeat_at_s = self.cluster.clock() + self._member.interval_s
        if is_changed:
            self._start_reading()

    def _rejoin_after(self, failure: KafkaError) -> None:
        if failure.error not in REJOINS:
            raise failure
        self._is_joined = False

    def _new_consumer(self) -> Consumer:
        return Consumer(
            self.cluster, {}, max_wait_ms=self.max_wait_ms, read_committed=self.read_committed, reset=self.start
        )

    def _start_reading(self) -> None:
        """Read the assigned partitions from the committed offsets on."""
        self._reads = None
        self._heartbeat_at_s = self.cluster.clock() + self._member.interval_s
        mine = self.assignment
        # wait for open transactions that commit offsets of the group: otherwise records would be read twice
        committed = self._groups.committed(self.group_id, mine, require_stable=True) if mine else {}
        self._consumer = self._new_consumer()
        self._consumer.seek({tp: committed[tp].offset if tp in committed else self.start for tp in mine})
        # commit at once: after a rebalance LATEST would be a later offset, and the records between would be skipped
        self.commit({tp: self._consumer.positions[tp] for tp in mine if tp not in committed})
        self._reads = mine
