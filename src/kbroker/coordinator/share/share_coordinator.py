"""The share coordinator: the state of all share partitions of the broker (KIP-932).

Source: ``ShareCoordinatorService``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from uuid import UUID

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import SHARE_STATE_TOPIC
from kbroker.coordinator.internal_topic import READ_BYTES, InternalTopic, Written
from kbroker.coordinator.partition_replay import PartitionReplay
from kbroker.coordinator.runtime import CoordinatorRuntime
from kbroker.coordinator.share.persister import ShareState, StateChange
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.coordinator.share.share_shard import ShareReplay, ShareShard

logger = get_logger(__name__)

#: Interval between deletions of replaced records, and time without an update after which a snapshot is written.
PRUNE_INTERVAL_MS = SNAPSHOT_INTERVAL_MS = 300_000


class ShareSettings(NamedTuple):
    """Settings of the share coordinator."""

    updates_per_snapshot: int = 500
    load_buffer_bytes: int = READ_BYTES


class ShareCoordinator:
    """The share partitions of the broker.

    All methods about one share partition raise KafkaError with the code for the client. Changes are on disk, if the
    topic's settings require it, when a method returns.
    Args: ``exists``: returns whether the partition of a share partition exists. Threads: any.
    """

    def __init__(
        self,
        clock: BaseClock,
        topic: InternalTopic,
        exists: Callable[[SharePartitionKey], bool],
        settings: ShareSettings | None = None,
    ) -> None:
        self._clock = clock
        self._topic = topic
        self._exists = exists
        self._settings = settings = ShareSettings() if settings is None else settings
        self.runtime: CoordinatorRuntime[ShareShard] = CoordinatorRuntime(
            topic,
            SHARE_STATE_TOPIC,
            "share partitions",
            self,
            clock,
            settings.load_buffer_bytes,
            lambda: ShareReplay(settings.updates_per_snapshot),
        )

    # ------------------------------------------------------------ loading and periodic work

    def build(self, index: int, epoch: int, replay: PartitionReplay) -> ShareShard:
        """Return the share partitions of a partition: see ``Coordinator``."""
        assert isinstance(replay, ShareReplay)
        limit = self._settings.updates_per_snapshot
        shard = ShareShard(self._topic, index, epoch, self._clock, limit, self._exists)
        shard.restore(replay, self.runtime.index_of)
        return shard

    def resume(self, shard: ShareShard) -> None:
        """Delete the share partitions of topics that were deleted meanwhile: see ``Coordinator``."""
        self._on_shard(shard, "delete share partitions of deleted topics", shard.delete_topics)

    def topic_deleted(self, name: str) -> None:
        """Delete the share partitions of a deleted topic; of the topic of the states itself, forget all."""
        if name == SHARE_STATE_TOPIC:
            self.runtime.topic_deleted()
            return
        for shard in self.runtime.shards:
            self.resume(shard)

    def prune(self) -> bool:
        """Delete records that later snapshots replace; return whether a log's start moved."""
        moved = False
        for shard in self.runtime.shards:
            moved |= bool(self._on_shard(shard, "delete records that snapshots replace", shard.prune))
        return moved

    def snapshot_idle(self) -> None:
        """Write snapshots of share partitions that have not changed for a while."""
        for shard in self.runtime.shards:
            self._on_shard(shard, "write snapshots", partial(shard.snapshot_idle, SNAPSHOT_INTERVAL_MS))

    def _on_shard(self, shard: ShareShard, words: str, run: Callable[[], Written | bool]) -> object:
        try:
            found = run()
            if isinstance(found, Written):
                found.await_disk()
            return found
        except (KafkaError, ValueError, OSError) as error:
            if shard.is_active:
                logger.warning("%s-%d: cannot %s: %s", SHARE_STATE_TOPIC, shard.index, words, error)
            return None

    # ------------------------------------------------------------ share partitions

    def prepare(self) -> None:
        """Create ``__share_group_state`` unless it exists. That takes a while; hold no lock. Raises: KafkaError."""
        self.runtime.prepare()

    def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state; a higher leader epoch is stored and fences the requests of earlier leaders."""
        state, written = self._shard(key, "read").read(key, leader_epoch)
        written.await_disk()
        return state

    def summary(self, key: SharePartitionKey) -> ShareState:
        """Return the state without its batches; start offset -1 if the share partition is not initialized."""
        return self._shard(key, "read", " summary").summary(key)

    def write(self, key: SharePartitionKey, change: StateChange) -> None:
        """Change the state."""
        self._shard(key, "write").write(key, change).await_disk()

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Create the state, or replace it."""
        self._shard(key, "initialize").initialize(key, state_epoch, start_offset).await_disk()

    def delete(self, key: SharePartitionKey) -> None:
        """Delete the state; no effect if there is none."""
        self._shard(key, "delete").delete(key).await_disk()

    def _shard(self, key: SharePartitionKey, verb: str, words: str = "") -> ShareShard:
        try:
            shard = self.runtime.find(key.text)
        except KafkaError as error:
            text = f"Unable to {verb} share group state{words}: {error.message or error.error.message}"
            raise KafkaError(error.error, text) from error
        if key.partition < 0:
            raise KafkaError(Errors.INVALID_REQUEST, "The partition id cannot be a negative number.")
        return shard


class ShareStatePersister:
    """Storage of share partitions by the share coordinators of this process.

    Args: ``coordinator_of``: returns the coordinator of a share partition, or raises KafkaError.
    """

    def __init__(self, coordinator_of: Callable[[SharePartitionKey], ShareCoordinator]) -> None:
        self._coordinator_of = coordinator_of

    def read_state(self, group_id: str, topic_id: UUID, partition: int, leader_epoch: int) -> ShareState:
        """Return the state; see ``ShareCoordinator.read``."""
        key = SharePartitionKey(group_id, topic_id, partition)
        return self._coordinator_of(key).read(key, leader_epoch)

    def write_state(self, group_id: str, topic_id: UUID, partition: int, change: StateChange) -> None:
        """Change the state; see ``ShareCoordinator.write``."""
        key = SharePartitionKey(group_id, topic_id, partition)
        self._coordinator_of(key).write(key, change)
