"""The live model of topics: names and ids to open partitions, published as a whole.

Source: ``ReplicationControlManager``, ``ReplicaManager.applyDelta``.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigValue
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.fair_lock import FairLock
from kbroker.common.feature_versions import DIRECTORIES_LEVEL
from kbroker.common.limited_log import RepeatedFailures
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC, TopicPartition
from kbroker.common.units import counted
from kbroker.log.checkpoints import uuid_to_text
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.log_dirs import LogDirView
from kbroker.log.unhosted_logs import Logs
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage, TopicImage
from kbroker.metadata.image.partition_registration import PartitionRegistration
from kbroker.metadata.new_topics import Created, PlannedTopic, planned_topic, topic_records
from kbroker.metadata.partition_records import directory_records
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.topic_growth import Charge, TopicGrowth, free, own_configs, storage_error
from kbroker.metadata.topic_opening import Opening, TopicOpening
from kbroker.metadata.topic_removal import Removal, TopicRemoval, removal_record
from kbroker.metadata.topic_rules import NewTopic, TopicNames, automatic_topic, excess_error

logger = get_logger(__name__)

ZERO_ID = uuid.UUID(int=0)
CREATED_AT_ONCE = 250  # topics: other changes of metadata wait meanwhile, about 50 ms
DELETED_AT_ONCE = 100  # topics: others wait for the lock meanwhile, and the deletion note has space for this many


class TopicView(NamedTuple):
    """A topic for handlers: never changed, replaced as a whole.

    ``partitions``: open logs by number, None where one could not be read at start; ``registrations``: leader, replicas
    and epochs of each; ``configs``: those that the topic itself sets; ``is_unrecorded``: it is the request log's topic,
    and requests about it alone are not recorded.
    """

    name: str
    topic_id: uuid.UUID
    partitions: tuple[Any, ...]
    is_internal: bool
    is_unrecorded: bool
    configs: Mapping[str, str]
    registrations: tuple[PartitionRegistration, ...]

    def hosted(self, node_id: int) -> list[Any]:
        """Return the logs of the partitions with a replica on this node, None for each that is not open."""
        placed = zip(self.partitions, self.registrations, strict=True)
        return [log for log, registration in placed if node_id in registration.replicas]


class TopicRegistry:
    """Topics by name and id, and the changes of topics.

    Args: ``publish`` gets every topic after each change; it swaps the native handlers' table.
    Threads: any; readers take no lock (mappings are swapped whole). Lock: its own, held while logs are opened and
    removed, before the controller's, which is held during the checks of a change.
    """

    def __init__(
        self,
        config: BrokerConfig,
        controller: Controller,
        logs: Logs,
        publish: Callable[[list[TopicView]], None],
        clock: BaseClock,
    ) -> None:
        self._config = config
        self._controller = controller
        self._logs = logs
        self._publish = publish
        self._failures = RepeatedFailures(clock)  # of requests that any client may repeat
        self.lock = FairLock()
        self.deletions = logs.deletions  # has the deleted topics of which a part is left
        self.on_deleted: list[Callable[[str], bool | None]] = []  # called with the name of each; False: a part is left
        #: Called with the topic's id and the number of each partition whose leader epoch has risen.
        self.on_elected: list[Callable[[uuid.UUID, int], None]] = []
        # by topic: the configs with which partitions could not be opened
        self._refused: dict[str, Mapping[str, ConfigValue]] = {}
        self._failed: dict[uuid.UUID, Exception] = {}  # created topics without logs, with the reason
        self._by_name: Mapping[str, TopicView] = {}
        self._by_id: Mapping[uuid.UUID, TopicView] = {}
        self._image = controller.image  # the image in force
        self._opening = TopicOpening(config, logs, self.lock, lambda: self._image, self._failed, self._serve)
        self._removal = TopicRemoval(self.lock, self._drop_logs)
        self._growth = TopicGrowth(config, controller, logs, self.lock, self._failed, self._drop_logs)
        self.create_remotely: Callable[[str], None] | None = None  # requests a topic from another node's controller
        self.version = 0  # rises with every change
        self.creation_version = 0  # version of the latest change that created a topic

    # ------------------------------------------------------------ reading

    def get(self, name: str) -> TopicView | None:
        """Return the topic of this name, or None."""
        return self._by_name.get(name)

    def get_by_id(self, topic_id: uuid.UUID) -> TopicView | None:
        """Return the topic of this id, or None."""
        return self._by_id.get(topic_id)

    def all(self) -> list[TopicView]:
        """Return every topic, sorted by name."""
        by_name = self._by_name
        return [by_name[name] for name in sorted(by_name)]

    def partition(self, name: str, index: int) -> Any:
        """Return the open log of a partition; None if it does not exist or could not be read at start."""
        topic = self._by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def is_offline(self, name: str, index: int) -> bool:
        """Return whether a partition exists whose log could not be read at start."""
        topic = self._by_name.get(name)
        return topic is not None and 0 <= index < len(topic.partitions) and topic.partitions[index] is None

    def forget(self, *hooks: Callable[..., object]) -> None:
        """Remove hooks from ``on_deleted`` and ``on_elected``. No effect on unknown ones."""
        self.on_deleted = [one for one in self.on_deleted if one not in hooks]
        self.on_elected = [one for one in self.on_elected if one not in hooks]

    def write_log_starts(self, keys: Iterable[TopicPartition]) -> Collection[TopicPartition]:
        """Write the log start offsets in the folders of these partitions; return the partitions for which it failed."""
        return self._logs.tasks.write_log_starts_of(keys)

    def describe_log_dirs(self) -> list[LogDirView]:
        """Return the log folders and the replicas in them."""
        return self._logs.describe_dirs()

    def move(self, name: str, index: int, path: str) -> None:
        """Begin to move a partition to another log folder. Raises: KafkaError with Kafka's code, after a log line."""
        try:
            self._logs.move_partition(name, index, path)
        except KafkaError as error:
            if error.error is Errors.UNKNOWN_TOPIC_OR_PARTITION and self.is_offline(name, index):
                error = KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Partition {name}-{index} is offline")
            raise self._noted(error, "%s-%d is not moved to %s: %s", name, index, path) from None

    # ------------------------------------------------------------ changing

    def load(self) -> None:
        """Start the logs of every topic, then publish the topics."""
        image = self._image = self._controller.image
        topics = [image.topics[name] for name in sorted(image.topics)]
        configs = {one.name: self._config.topic_configs(own_configs(image, one.name)) for one in topics}
        self._logs.start([TopicLogs(one.name, one.topic_id, len(one.partitions), configs[one.name]) for one in topics])
        views = {
            one.name: self._view(one, [self._logs.partition(one.name, index) for index in range(len(one.partitions))])
            for one in topics
        }
        self._note_isr(views.values())
        self._swap(views)
        self._refused = {name: configs[name] for name, view in self._by_name.items() if None in view.partitions}
        self.record_directories(self._by_name)

    def create(self, topic: NewTopic, validate_only: bool = False) -> Created:
        """Create a topic; unless it is only validated, it is stored, open and published when this returns.

        Raises: KafkaError with Kafka's code and text.
        """
        (made,) = self.create_all([topic], validate_only)
        if isinstance(made, KafkaError):
            raise made
        return made

    def create_all(
        self, topics: Iterable[NewTopic], validate_only: bool = False, charge: Charge = free
    ) -> list[Created | KafkaError]:
        """Create topics independently of each other; one write, sync and publication for many costs as much as for one.

        Other changes happen in between; created topics stay if others fail. Topics that exist are in force when this
        returns, unless another request still makes the logs of many partitions. None is created if they are too many.

        Args: ``charge`` is called with the number of partitions of each valid topic, unless it is only validated.
        Returns: for each topic the result, or the error with Kafka's code and text.
        """
        wanted = list(topics)
        if excess := excess_error(wanted, self._config.integer("num.partitions")):
            return [excess] * len(wanted)
        if validate_only:
            planned = self._planned(wanted, self._controller.image, None)
            return [one if isinstance(one, KafkaError) else one.created for one in planned]
        results: list[Created | KafkaError] = []
        for start in range(0, len(wanted), CREATED_AT_ONCE):
            results += self._create_some(wanted[start : start + CREATED_AT_ONCE], charge)
        return results

    def _create_some(self, topics: Sequence[NewTopic], charge: Charge) -> list[Created | KafkaError]:
        results: list[PlannedTopic | KafkaError] = []
        planned: list[PlannedTopic] = []

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            results.extend(self._planned(topics, image, charge))
            planned.extend(one for one in results if isinstance(one, PlannedTopic))
            # coordinators use an internal topic as soon as it is stored
            ids = [one.topic_id for one in planned if one.name not in INTERNAL_TOPICS]
            self._opening.expect(sum(len(one.replicas) for one in planned), ids)
            return [record for one in planned for record in topic_records(one, self._logs.directory_ids, image.level)]

        failures: dict[uuid.UUID, KafkaError] = {}
        try:
            try:
                self._controller.change(plan, publisher=self)  # waits for a topic that another request is creating
            finally:
                self._opening.finish(one.topic_id for one in planned)
            failures = self._forget_failed(planned)
            self.record_directories([one.name for one in planned])
        except KafkaError as error:
            failures = {one.topic_id: error for one in planned}
        return [one if isinstance(one, KafkaError) else failures.get(one.topic_id) or one.created for one in results]

    def _planned(
        self, topics: Iterable[NewTopic], image: MetadataImage, charge: Charge | None
    ) -> list[PlannedTopic | KafkaError]:
        """Return the plan of each topic, or the error. Args: ``charge``: None if the topics are not created."""
        results: list[PlannedTopic | KafkaError] = []
        names = TopicNames(image.topics)
        for topic in topics:
            try:
                one = self._checked(topic, names, image)
                if charge is not None:
                    charge(len(one.replicas))
                    names.add(topic.name)
                results.append(one)
            except KafkaError as error:
                results.append(error)
        return results

    def _checked(self, topic: NewTopic, names: TopicNames, image: MetadataImage) -> PlannedTopic:
        planned = planned_topic(topic, names, self._config, image)
        self.resolve(planned.configs)
        return planned

    def _forget_failed(self, topics: Iterable[PlannedTopic]) -> dict[uuid.UUID, KafkaError]:
        """Delete those topics whose logs could not be created; return their errors.

        The topics were stored first: folders without a stored topic would stay forever, while a start creates missing
        folders. Raises: OutcomeUnknownError, if they cannot be deleted: the next start would create them.
        """
        ids = [one.topic_id for one in topics if one.topic_id in self._failed]
        failures = {topic_id: storage_error(self._failed[topic_id]) for topic_id in ids}
        if ids:
            try:
                self._controller.change(
                    lambda image: [removal_record(topic_id) for topic_id in ids if topic_id in image.topics_by_id],
                    frees_space=True,
                )
            except KafkaError as error:
                reason = f"topics whose logs could not be created cannot be deleted: {error}"
                raise self._controller.failed(reason) from None
        return failures

    def delete(self, name: str, charge: Charge = free) -> uuid.UUID:
        """Delete a topic and its logs; return its id.

        Args: ``charge`` is called with its number of partitions first. Raises: its errors; KafkaError
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        (deleted,) = self.delete_all([name], charge)
        if isinstance(deleted, KafkaError):
            raise deleted
        return deleted

    def delete_all(self, names: Sequence[str], charge: Charge = free) -> list[uuid.UUID | KafkaError]:
        """Delete topics independently of each other, many with one write; return the id of each, or its error."""
        results: list[uuid.UUID | KafkaError] = []
        for start in range(0, len(names), DELETED_AT_ONCE):
            results += self._delete_some(names[start : start + DELETED_AT_ONCE], charge)
        return results

    def _delete_some(self, names: Sequence[str], charge: Charge) -> list[uuid.UUID | KafkaError]:
        results: list[uuid.UUID | KafkaError] = []
        deleted: dict[str, uuid.UUID] = {}
        # before the controller's lock is taken, as it waits for disks; a start after a crash removes their folders
        noted = {name: topic.topic_id for name in names if (topic := self._controller.image.topics.get(name))}
        self.deletions.add(noted.values())

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            for name in names:
                try:
                    topic = image.topics.get(name)
                    if topic is None or name in deleted or topic.topic_id != noted.get(name):  # or made meanwhile
                        raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
                    charge(len(topic.partitions))
                except KafkaError as refusal:
                    results.append(refusal)
                else:
                    deleted[name] = topic.topic_id
                    results.append(topic.topic_id)
            self._removal.expect(sum(len(image.topics[name].partitions) for name in deleted), deleted.values())
            return [removal_record(topic_id) for topic_id in deleted.values()]

        try:
            try:
                self._controller.change(plan, frees_space=True)
            except KafkaError as error:
                self.deletions.withdraw(noted.values())
                return [one if isinstance(one, KafkaError) else error for one in results]
            self.deletions.withdraw(noted[name] for name in noted.keys() - deleted)
            # before their logs are removed, which takes seconds: coordinators must not wait
            done = [one for name, one in deleted.items() if False not in [hook(name) for hook in self.on_deleted]]
            self.deletions.forget(done)
        finally:
            self._removal.finish(deleted.values())
        return results

    def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        charge: Charge = free,
    ) -> None:
        """Add partitions to a topic, up to ``count`` in total.

        Args: ``charge`` is called with the number of new partitions, if they are valid and not only validated.
        Raises: KafkaError with Kafka's code and text.
        """
        self._growth.add(name, count, assignments, validate_only, charge)
        if not validate_only:
            self.record_directories([name])
            logger.info("topic %s has %d partitions now", name, count)

    def record_directories(self, names: Collection[str]) -> None:
        """Store the log folders of partitions for which the metadata has none or another; a failure is logged.

        Among several folders the log manager chooses when it creates a log; a single one is stored with the partition.
        """
        if len(self._logs.directory_ids) <= 1 or self._controller.image.level < DIRECTORIES_LEVEL:
            return
        directory_of = self._logs.directory_of
        try:
            self._controller.change(lambda image: directory_records(image, names, directory_of, image.level))
        except Exception as error:  # a broker that stops, or a full disk: the partitions are still served
            logger.warning("the log folders of partitions are stored at the next start: %s", error)

    # ------------------------------------------------------------ effect

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether the delta changes a topic or its configs."""
        return bool(delta.topics.created or delta.topics.changed or delta.topics.deleted) or any(
            kind == ConfigResourceType.TOPIC for kind, _ in delta.changed_configs
        )

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Open and remove logs and swap the topics, as a change of the metadata requires."""
        self._image = image
        if delta.topics.deleted:
            self._remove(delta.topics.deleted.values())
        self._removal.complete([one.name for one in delta.topics.created.values()])
        at_once = [
            one for one in delta.topics.created.values() if not self._opening.begin(one.topic_id, Opening(one.name))
        ]
        created = self._created(at_once)
        grown = [one for one in delta.topics.changed.values() if self._is_grown(one)]
        fresh = created | {topic.name: self._open(topic, self._by_name[topic.name].partitions) for topic in grown}
        fresh |= self._reconfigured(delta, fresh)
        for topic in delta.topics.changed.values():
            view = fresh.get(topic.name) or self._by_name.get(topic.name)
            if view is not None:
                fresh[topic.name] = view._replace(registrations=topic.partitions)
        if fresh:
            self._note_isr(fresh.values())
            self._swap({**self._by_name, **fresh})
        for topic in delta.topics.changed.values():
            if topic.name in self._by_name:
                self._lead(self._by_name[topic.name])
        _log_created(created.values())

    def _created(self, topics: Collection[TopicImage]) -> dict[str, TopicView]:
        """Create the logs of new topics; return the views, without those that failed."""
        views: dict[str, TopicView] = {}
        for topic in topics:
            try:
                views[topic.name] = self._open(topic)
            except Exception as error:
                self._failed[topic.topic_id] = error
        return self._synced(topics, views)

    def _serve(self, topics: Collection[TopicImage], opened: Mapping[uuid.UUID, Sequence[Any]]) -> None:
        """Serve new topics with these logs, unless they failed."""
        views = {one.name: self._view(one, opened[one.topic_id]) for one in topics if one.topic_id in opened}
        created = self._synced(topics, views)
        if created:
            self._note_isr(created.values())
            self._swap({**self._by_name, **created})
        for view in created.values():
            self._lead(view)
        _log_created(created.values())

    def _synced(self, topics: Iterable[TopicImage], views: dict[str, TopicView]) -> dict[str, TopicView]:
        """Make the folders of new topics durable; return the views without failed topics, whose logs are removed."""
        if views:
            try:
                self._logs.sync_folders()
            except (OSError, KafkaError) as error:
                self._failed.update(dict.fromkeys((view.topic_id for view in views.values()), error))
                views = {}
        failed = {topic.name: range(len(topic.partitions)) for topic in topics if topic.name not in views}
        if failed:
            # Folders before metadata: a start creates missing folders of known topics, and keeps those of unknown ones.
            self._drop_logs(failed)
        return views

    def _lead(self, view: TopicView) -> None:
        """Set the leader epochs of logs after the swap of the views; fetches waiting with an earlier epoch complete."""
        for index, (log, registration) in enumerate(zip(view.partitions, view.registrations, strict=True)):
            if log is not None and log.leader_epoch < registration.leader_epoch:
                log.set_leader_epoch(registration.leader_epoch)
                for hook in self.on_elected:
                    hook(view.topic_id, index)

    def _note_isr(self, views: Iterable[TopicView]) -> None:
        """Make logs refuse acks=all while the ISR is smaller than min.insync.replicas and lacks a replica."""
        for view in views:
            hosted = [one for one in zip(view.partitions, view.registrations, strict=True) if one[0] is not None]
            if any(len(registration.replicas) > 1 or log.is_under_min_isr for log, registration in hosted):
                required = self._config.topic_configs(view.configs)["min.insync.replicas"]
                assert isinstance(required, int)
                for log, registration in hosted:
                    log.is_under_min_isr = len(registration.isr) < min(required, len(registration.replicas))

    def _is_grown(self, topic: TopicImage) -> bool:
        view = self._by_name.get(topic.name)
        return view is not None and len(view.partitions) < len(topic.partitions)

    def _remove(self, topics: Iterable[TopicImage]) -> None:
        views: dict[str, TopicView] = {}
        logs: dict[str, range] = {}
        for topic in topics:
            growing_end = self._growth.forget(topic.topic_id)
            is_opening = self._opening.end(topic.topic_id)
            if self._failed.pop(topic.topic_id, None) is not None or is_opening:  # partitions may have been added
                self._drop_logs({topic.name: range(max(len(topic.partitions), growing_end))}, [topic.topic_id])
            view = self._by_id.get(topic.topic_id)
            if view is not None:
                views[view.name] = view
                logs[view.name] = range(max(len(view.partitions), growing_end))
        if not views:
            return
        self._swap({name: view for name, view in self._by_name.items() if name not in views})
        at_once = {
            name: indexes
            for name, indexes in logs.items()
            if not self._removal.begin(views[name].topic_id, Removal(name, indexes))
        }
        if at_once:
            self._drop_logs(at_once, [views[name].topic_id for name in at_once])
        for name, view in views.items():
            logger.info("deleted topic %s, id %s", name, uuid_to_text(view.topic_id))

    def _reconfigured(self, delta: MetadataDelta, fresh: Mapping[str, TopicView]) -> dict[str, TopicView]:
        """Apply changed configs to the logs of their topics; return the views of those topics that are served."""
        opening = self._opening.names.difference(one.name for one in delta.topics.created.values())
        names = [name for kind, name in delta.changed_configs if kind == ConfigResourceType.TOPIC]
        names = [name for name in names if (name in self._by_name or name in opening) and name not in fresh]
        resolved = {name: self.resolve(own_configs(self._image, name)) for name in names}
        if resolved:
            self._logs.update_configs(resolved)
        return {
            name: self._retried(self._by_name[name]._replace(configs=own_configs(self._image, name)), configs)
            for name, configs in resolved.items()
            if name in self._by_name
        }

    def resolve(self, configs: Mapping[str, str], config: BrokerConfig | None = None) -> Mapping[str, ConfigValue]:
        """Return every config of a topic that sets ``configs``; defaults are those of ``config``, or else the broker's.

        Raises: KafkaError INVALID_CONFIG, if no log could be opened with it.
        """
        resolved = (config or self._config).topic_configs(configs)
        try:
            self._logs.check_config(resolved)
        except ValueError as error:
            raise KafkaError(Errors.INVALID_CONFIG, str(error)) from error
        return resolved

    def check_defaults(self, config: BrokerConfig) -> None:
        """Refuse defaults of a broker that the logs of an existing or a new topic could not use.

        Raises: KafkaError INVALID_CONFIG.
        """
        for configs in ({}, *(view.configs for view in self.all())):
            self.resolve(configs, config)

    def refresh_configs(self) -> None:
        """Apply the broker's changed defaults to every topic's logs."""
        with self.lock:
            names = self._by_name.keys() | self._opening.names
            resolved = {name: self._config.topic_configs(own_configs(self._image, name)) for name in names}
            self._logs.update_configs(resolved)
            self._note_isr(self._by_name.values())
            views = {name: self._retried(view, resolved[name]) for name, view in self._by_name.items()}
            if any(views[name] is not view for name, view in self._by_name.items()):
                self._swap(views)

    def _retried(self, view: TopicView, resolved: Mapping[str, ConfigValue]) -> TopicView:
        """Return the view after another attempt to open offline partitions with changed configs.

        Those of ``__consumer_offsets`` wait for a restart: a coordinator must read them from their beginning.
        """
        if (
            None not in view.partitions
            or not self._logs.hosts
            or view.name == OFFSETS_TOPIC
            or self._refused.get(view.name) == resolved
        ):
            return view
        partitions = list(view.partitions)
        for index, present in enumerate(partitions):
            if present is None:
                try:
                    (partitions[index],) = self._logs.create_partitions(
                        view.name, [index], view.topic_id, resolved, is_known=True
                    )
                except (OSError, ValueError, KafkaError) as error:
                    logger.error("partition %s-%d stays offline: %s", view.name, index, error)
                else:
                    logger.info("partition %s-%d is online again", view.name, index)
        self._refused[view.name] = resolved
        return view._replace(partitions=tuple(partitions))

    def auto_create(self, names: Iterable[str], charge: Charge = free) -> None:
        """Create topics that are used for the first time; those that cannot be created are left out.

        With ``create_remotely`` they are only requested, and exist later.

        Topics whose logs another request still makes are left out, too: each repeated request would wait for the lock.
        """
        if self.create_remotely is not None:
            for name in names:
                self.create_remotely(name)
            return
        count = max(1, len(self._controller.image.brokers))
        opening = self._opening.names
        topics = [automatic_topic(name, self._config, count) for name in names if name not in opening]
        for topic, made in zip(topics, self.create_all(topics, charge=charge), strict=True):
            if isinstance(made, KafkaError) and made.error is not Errors.TOPIC_ALREADY_EXISTS:
                self._noted(made, "topic %s is not created automatically: %s", topic.name)

    def _noted(self, error: KafkaError, message: str, *args: object) -> KafkaError:
        """Return the error after a warning, of which there is one a minute for each message and code."""
        self._failures.log((message, error.error), logger.warning, message, *args, error)
        return error

    def _open(self, topic: TopicImage, served: tuple[Any, ...] = ()) -> TopicView:
        """Return the view of a topic whose logs are made. Args: ``served``: the first ones, which stay as they are."""
        resolved = self._config.topic_configs(own_configs(self._image, topic.name))
        indexes = range(len(served), len(topic.partitions))
        made = self._logs.create_partitions(topic.name, indexes, topic.topic_id, resolved)
        return self._view(topic, (*served, *made))

    def _view(self, topic: TopicImage, logs: Iterable[Any]) -> TopicView:
        is_log = topic.name == self._config.text("kbroker.request.log.topic")
        is_internal, configs = is_log or topic.name in INTERNAL_TOPICS, own_configs(self._image, topic.name)
        return TopicView(topic.name, topic.topic_id, tuple(logs), is_internal, is_log, configs, topic.partitions)

    def _drop_logs(
        self, partitions: Mapping[str, Iterable[int]], topic_ids: Iterable[uuid.UUID] = (), is_last: bool = True
    ) -> None:
        """Remove the existing logs of these partitions; a failed creation may have left some out. A failure is logged.

        Args: ``topic_ids``: those of deleted topics; ``is_last``: False if more of their logs follow.
        """
        try:
            self._logs.delete_topics(partitions, topic_ids, is_last)
        except (OSError, KafkaError) as error:
            names = list(partitions)
            logger.warning("cannot remove all logs of %s: %s", names[0] if len(names) == 1 else names, error)

    def _swap(self, by_name: Mapping[str, TopicView]) -> None:
        has_new = any(view.topic_id not in self._by_id for view in by_name.values())
        self._by_id = {view.topic_id: view for view in by_name.values()}
        self._by_name = by_name
        self.version += 1
        if has_new:
            self.creation_version = self.version
        self._publish(list(by_name.values()))


def _log_created(views: Iterable[TopicView]) -> None:
    for view in views:
        count = counted(len(view.partitions), "partition")
        logger.info("created topic %s with %s, id %s", view.name, count, uuid_to_text(view.topic_id))
