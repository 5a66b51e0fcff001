"""The controller of the metadata: one change at a time, planned against the image, stored, replayed, published.

A change whose outcome on the disk is unknown gets no response, and the broker stops, as Kafka's controller does: the
next start reads from the log whether it was made.
Source: ``QuorumController``, ``MetadataLoader``; order of publishers: ``BrokerMetadataPublisher``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol
from uuid import UUID

from kbroker.common.errors import OutcomeUnknownError
from kbroker.common.loggers import get_logger
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.records.batches import BATCH_RECORDS
from kbroker.metadata.records.metadata_record import MetadataRecord

logger = get_logger(__name__)

#: Returns the records that change this image. An exception is raised to the caller of the change; nothing is stored.
Plan = Callable[[MetadataImage], Sequence[MetadataRecord]]


class NotInForceError(Exception):
    """Stored change that a part of the broker failed to put in force. ``cause``: the failure."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Publisher(Protocol):
    """A part of the broker that follows the image."""

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """Lock that is held during `publish`; taken before the controller's."""

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether `publish` has something to do for the delta."""

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Put the changes in force. Called for one delta after the other; must not change metadata."""


class _Queue:
    """Deltas that wait for a publisher, in the order of the log. Publishers do not wait for each other."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self._waiting: deque[_Change] = deque()

    def add(self, change: _Change) -> None:
        self._waiting.append(change)

    def publish(self) -> None:
        """Publish all waiting changes; when this returns, those that another thread has taken are published, too."""
        with self.publisher.lock:
            while self._waiting:
                change = self._waiting.popleft()
                assert change.delta is not None
                try:
                    self.publisher.publish(change.delta, change.image)
                except Exception as error:  # the other publishers are still called
                    logger.exception("a change of metadata cannot be put in force")
                    change.error = NotInForceError(error)


class Storage(Protocol):
    """Storage of the records."""

    @property
    def end_offset(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def kraft_version(self) -> int: ...
    def append(self, records: Sequence[MetadataRecord], level: int, *, frees_space: bool) -> None:
        """Append all records or none. Raises: KafkaError if none was appended; OSError if that is unknown."""

    def flush(self) -> None:
        """Make all appended records durable. Raises: OSError; it is then unknown which of them are."""


class MemoryStorage:
    """Storage of a broker without a metadata log: it counts offsets and drops the records."""

    epoch = kraft_version = 1

    def __init__(self, end_offset: int = 0) -> None:
        self.end_offset = end_offset

    def append(self, records: Sequence[MetadataRecord], level: int, *, frees_space: bool) -> None:
        self.end_offset += len(records)

    def flush(self) -> None:
        pass


class _Change:
    """A change that waits for its turn."""

    __slots__ = ("delta", "error", "frees_space", "image", "is_done", "plan", "queues", "records")

    def __init__(self, plan: Plan, frees_space: bool) -> None:
        self.plan = plan
        self.frees_space = frees_space
        self.error: BaseException | None = None
        self.records: Sequence[MetadataRecord] = ()
        self.delta: MetadataDelta | None = None
        self.image = EMPTY_IMAGE
        self.is_done = False
        self.queues: list[_Queue] = []


class Controller:
    """The image of the cluster's metadata, and its changes.

    Args: ``node_id``, ``cluster_id``: the broker's; ``storage``: None to keep nothing; ``image``: as loaded.
    Threads: any. Lock: its own, held during the sync, and taken after the locks of the publishers; reading
    `image` takes none. Changes that wait for the lock share a batch and its sync. Each publisher gets the deltas that
    concern it in the order of the log, under its own lock: a change waits for no other publisher, such as one that
    makes thousands of logs.
    """

    #: False if the controllers of the cluster are other nodes.
    is_active: ClassVar[bool] = True

    def __init__(
        self, node_id: int, cluster_id: str, storage: Storage | None = None, image: MetadataImage = EMPTY_IMAGE
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.directory_id = UUID(int=0)  # of the folder with the metadata log, 0 in memory
        self.publishers: list[Publisher] = []
        self.on_failure: Callable[[str], None] = lambda reason: None  # called once, with the reason for the stop
        self._storage: Storage = MemoryStorage(image.offset + 1) if storage is None else storage
        self._image = image
        self._lock = threading.Lock()
        self._waiting: deque[_Change] = deque()
        self._queues: dict[int, _Queue] = {}  # by id() of the publisher
        self._failure = ""

    def unfollow(self, publisher: Publisher) -> None:
        """Stop calling a publisher. No effect if it is not called."""
        with self._lock:
            self.publishers = [one for one in self.publishers if one is not publisher]
            self._queues.pop(id(publisher), None)

    @property
    def image(self) -> MetadataImage:
        """The latest image; it never changes."""
        return self._image

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        return self._storage.end_offset

    @property
    def epoch(self) -> int:
        """Leader epoch of the quorum."""
        return self._storage.epoch

    @property
    def kraft_version(self) -> int:
        """Finalized level of kraft.version, which control records contain."""
        return self._storage.kraft_version

    def change(self, plan: Plan, *, publisher: Publisher | None = None, frees_space: bool = False) -> None:
        """Store the records that ``plan`` returns, all or none; they are in force when this returns.

        Args: ``plan`` runs under the controller's lock, perhaps in another thread that changes metadata;
        ``publisher``: earlier changes are in force in this publisher, too, even if ``plan`` returned no records;
        ``frees_space``: the change is possible on a full disk.
        Raises: the errors of ``plan``; KafkaError KAFKA_STORAGE_ERROR, when nothing was stored; NotInForceError;
        OutcomeUnknownError.
        """
        mine = _Change(plan, frees_space)
        self._waiting.append(mine)
        with self._lock:
            if not mine.is_done:
                self._make_waiting()
        earlier = self._queues.get(id(publisher))
        for queue in mine.queues if earlier is None else [earlier, *mine.queues]:
            queue.publish()
        if mine.error is not None:
            raise mine.error

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Put in force a change that another controller has made: ``image`` is the result of ``delta``."""
        change = _Change(lambda _: (), frees_space=False)
        change.delta, change.image = delta, image
        with self._lock:
            self._image = image
            self._hand_over([change])
        for queue in change.queues:
            queue.publish()

    def _make_waiting(self) -> None:
        changes = []
        while self._waiting:
            changes.append(self._waiting.popleft())
        try:
            self._make(changes)
        except BaseException as error:  # an interrupt: the log may have records that the image lacks
            failure = self.failed(f"a change of the metadata was interrupted by {error!r}")
            for change in changes:
                change.error = failure
            raise
        finally:
            for change in changes:
                change.is_done = True

    def _make(self, changes: Sequence[_Change]) -> None:
        """Plan the changes one after the other, and store them in groups that each fit in one batch."""
        group: list[_Change] = []
        for change in changes:
            if group and (change.frees_space != group[0].frees_space or group[-1].image.level != self._image.level):
                self._store(group)
                group = []
            self._plan(change, group[-1].image if group else self._image)
            if group and sum(len(one.records) for one in (*group, change)) > BATCH_RECORDS:
                refusal = self._store(group)
                group = []
                if refusal is not None:
                    self._refuse([change], refusal)  # planned against an image with the refused changes
                    continue
            if group or change.delta is not None:
                group.append(change)  # even one without records: its result depends on those before it
        if group:
            self._store(group)

    def _plan(self, change: _Change, image: MetadataImage) -> None:
        """Set the records of a change to this image, the resulting image and the delta, or the error."""
        change.image = image
        try:
            if self._failure:
                raise OutcomeUnknownError(self._failure)
            change.records = change.plan(image)
            if not change.records:
                return
            delta = MetadataDelta(image)
            for record in change.records:
                delta.replay(record)
            change.image = delta.apply(image.offset, image.epoch)  # or the next start fails, which replays them
            change.delta = delta
        except Exception as error:
            change.error, change.records = error, ()

    def _store(self, group: Sequence[_Change]) -> BaseException | None:
        """Store planned changes, all or none, and hand them to the publishers; return the error of the refused ones.

        The changes are one batch: after a power cut only the last batch can be incomplete, which a start distinguishes
        from damage. If the batch is refused, each change is stored alone, up to the first that is refused; the later
        changes were planned against an image with that one.
        """
        level = self._image.level
        try:
            records = [record for change in group for record in change.records]
            self._storage.append(records, level, frees_space=group[0].frees_space)
            self._sync()
        except OSError as error:
            return self._refuse(group, self.failed(f"the metadata log cannot be written: {error}"))
        except Exception as error:
            if len(group) == 1 or self._failure:
                return self._refuse(group, error)
            for number, change in enumerate(group):
                refusal = None if change.delta is None else self._store([change])
                if refusal is not None:
                    return self._refuse(group[number:], refusal)
            return None
        for change in group:
            change.image = change.image._replace(offset=self._storage.end_offset - 1, epoch=self._storage.epoch)
        self._image = group[-1].image  # at the end of the batch: a snapshot that ends within it could not be read
        self._hand_over(group)
        return None

    def _hand_over(self, changes: Iterable[_Change]) -> None:
        """Add the deltas to the queues of the publishers that they concern."""
        for change in changes:
            for publisher in self.publishers:
                if change.delta is not None and publisher.concerns(change.delta):
                    queue = self._queues.setdefault(id(publisher), _Queue(publisher))
                    queue.add(change)
                    change.queues.append(queue)

    def _sync(self) -> None:
        """Make the appended records durable. Raises: OutcomeUnknownError."""
        try:
            self._storage.flush()
        except Exception as error:
            raise self.failed(f"the metadata log cannot be synced: {error}") from None

    @staticmethod
    def _refuse(changes: Iterable[_Change], error: BaseException) -> BaseException:
        for change in changes:
            change.error, change.delta = error, None
        return error

    def failed(self, reason: str) -> OutcomeUnknownError:
        """Refuse all further changes, and make the broker stop; return the error to raise."""
        if not self._failure:
            self._failure = (
                f"{reason}; it is unknown whether the last change is stored, so the broker stops: repair the disk, "
                "then start it again"
            )
            logger.critical("%s", self._failure)
            self.on_failure(self._failure)
        return OutcomeUnknownError(self._failure)
