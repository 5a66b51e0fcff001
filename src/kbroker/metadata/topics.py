"""The live model of topics: names and ids to open partitions, changed one at a time, published as a whole."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigValue
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.common.units import counted
from kbroker.log.checkpoints import uuid_to_text
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.log_tasks import LogTasks
from kbroker.log.manager import LogDirView
from kbroker.metadata.metadata_store import TOPIC, MetadataStore, StoredTopic
from kbroker.metadata.topic_rules import NewTopic, TopicNames, check_configs, check_more_partitions, check_new_topic

logger = get_logger(__name__)

ZERO_ID = uuid.UUID(int=0)

DELETED_AT_ONCE = 100  # topics: others wait for the lock meanwhile, and the deletion note has space for this many

#: Called with a number of partitions about to be created, added or deleted; raises KafkaError to refuse them.
Charge = Callable[[int], None]


def free(mutations: int) -> None:
    """Charge nothing; every mutation is allowed."""


class Logs(Protocol):
    """Methods of the log manager that the registry uses."""

    def start(self, topics: Iterable[TopicLogs]) -> object: ...
    def partition(self, topic: str, partition: int) -> Any: ...
    def create_partitions(
        self, topic: str, partitions: Iterable[int], topic_id: uuid.UUID, config: Mapping[str, ConfigValue]
    ) -> list[Any]: ...
    def note_deletions(self, topic_ids: Iterable[uuid.UUID]) -> None: ...
    def delete_topics(self, topics: Mapping[str, Iterable[int]]) -> None: ...
    def sync_folders(self) -> None: ...
    def check_config(self, config: Mapping[str, ConfigValue]) -> None: ...
    @property
    def tasks(self) -> LogTasks: ...
    def describe_dirs(self) -> list[LogDirView]: ...
    def move_partition(self, topic: str, partition: int, path: str) -> None: ...
    def update_configs(self, configs: Mapping[str, Mapping[str, ConfigValue]]) -> None: ...


class TopicView(NamedTuple):
    """A topic for handlers: never changed, replaced as a whole.

    ``partitions``: open logs by number, None where one could not be read at start; ``configs``: those that the topic
    itself sets; ``is_unrecorded``: it is the request log's topic, and requests about it alone are not recorded.
    """

    name: str
    topic_id: uuid.UUID
    partitions: tuple[Any, ...]
    is_internal: bool = False
    is_unrecorded: bool = False
    configs: Mapping[str, str] = MappingProxyType({})


class Created(NamedTuple):
    """Result of creating a topic. The id is random and not stored when the request was only validated."""

    topic_id: uuid.UUID
    num_partitions: int
    configs: Mapping[str, str]


class TopicRegistry:
    """Topics by name and id.

    Args: ``publish`` gets every topic after each change; it swaps the native handlers' table.
    Threads: reading from any thread without a lock (mappings are swapped whole); changes one at a time.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        logs: Logs,
        publish: Callable[[list[TopicView]], None],
    ) -> None:
        self._config = config
        self._store = store
        self._logs = logs
        self._publish = publish
        self.on_deleted: list[Callable[[str], None]] = []  # called with the name of each deleted topic
        self._lock = threading.Lock()
        # by topic: the configs with which partitions could not be opened
        self._refused: dict[str, Mapping[str, ConfigValue]] = {}
        self._to_forget: set[str] = set()  # stored, but never created, since deleting them from the store failed
        self._by_name: Mapping[str, TopicView] = {}
        self._by_id: Mapping[uuid.UUID, TopicView] = {}
        self.version = 0  # rises with every change
        self.creation_version = 0  # of the latest change that created a topic

    # ------------------------------------------------------------ reading

    def get(self, name: str) -> TopicView | None:
        """Return the topic of this name, or None."""
        return self._by_name.get(name)

    def get_by_id(self, topic_id: uuid.UUID) -> TopicView | None:
        """Return the topic of this id, or None."""
        return self._by_id.get(topic_id)

    def all(self) -> list[TopicView]:
        """Return every topic, by name."""
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

    def write_log_starts(self) -> bool:
        """Write to disk where each log starts; return False if a folder failed."""
        return self._logs.tasks.write_log_starts()

    def describe_log_dirs(self) -> list[LogDirView]:
        """Describe the log folders and the replicas in them."""
        return self._logs.describe_dirs()

    def move(self, name: str, index: int, path: str) -> None:
        """Begin to move a partition to another log folder. Raises: KafkaError with the code and text of Kafka."""
        try:
            self._logs.move_partition(name, index, path)
        except KafkaError as error:
            if error.error is Errors.UNKNOWN_TOPIC_OR_PARTITION and self.is_offline(name, index):
                raise KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Partition {name}-{index} is offline") from None
            raise

    # ------------------------------------------------------------ changing

    def load(self) -> None:
        """Start the logs of every stored topic, then publish the topics."""
        with self._lock:
            topics = self._store.topics()
            configs = self._config.topic_configs
            self._logs.start(
                [TopicLogs(one.name, one.topic_id, one.partitions, configs(one.configs)) for one in topics]
            )
            self._swap({one.name: self._loaded(one) for one in topics})
            self._refused = {
                name: configs(view.configs) for name, view in self._by_name.items() if None in view.partitions
            }

    def create(self, topic: NewTopic, validate_only: bool = False) -> Created:
        """Create a topic; it is stored, open and published when this returns.

        Raises: KafkaError with the code and text of Kafka.
        """
        (made,) = self.create_all([topic], validate_only)
        if isinstance(made, KafkaError):
            raise made
        return made

    def create_all(
        self, topics: Iterable[NewTopic], validate_only: bool = False, charge: Charge = free
    ) -> list[Created | KafkaError]:
        """Create topics separately, but store, sync and publish them together, which costs as much as for one.

        Args: ``charge`` is called with the partitions of each valid topic, unless it is only validated.
        Returns: for each the created topic, or the error with the code and text of Kafka.
        """
        results: list[StoredTopic | KafkaError] = []
        with self._lock:
            names = TopicNames(self._by_name)
            for topic in topics:
                try:
                    one = self._checked(topic, names)
                    if not validate_only:
                        charge(one.partitions)
                    results.append(one)
                except KafkaError as error:
                    results.append(error)
                else:
                    if not validate_only:
                        names.add(topic.name)
            accepted = [one for one in results if isinstance(one, StoredTopic)]
            failures = {} if validate_only or not accepted else self._make(accepted)
        return [one if isinstance(one, KafkaError) else failures.get(one.name) or _created(one) for one in results]

    def _checked(self, topic: NewTopic, names: TopicNames) -> StoredTopic:
        default = self._config.integer("num.partitions")
        count = check_new_topic(topic, names, self._config.node_id, default)
        configs = check_configs(topic.configs)
        self.resolve(configs)
        return StoredTopic(topic.name, uuid.uuid4(), count, configs)

    def _make(self, topics: Sequence[StoredTopic]) -> dict[str, KafkaError]:
        """Store and open the topics, and publish the created ones; return the errors of the others.

        They are stored first: folders without a stored topic would stay forever, while a start creates missing folders.
        """
        try:
            if self._to_forget:
                self._store.remove_topics(self._to_forget)
                self._to_forget.clear()
            self._store.add_topics(topics)
        except KafkaError as error:
            return {topic.name: error for topic in topics}
        views: dict[str, TopicView] = {}
        failures: dict[str, Exception] = {}
        for topic in topics:
            try:
                views[topic.name] = self._open(topic, range(topic.partitions))
            except Exception as error:
                failures[topic.name] = error
        try:
            self._logs.sync_folders()
        except (OSError, KafkaError) as error:
            failures.update(dict.fromkeys(views, error))
            views.clear()
        if failures:
            # Their folders first: a start creates missing folders of known topics, and leaves those of unknown ones.
            self._drop_logs({topic.name: range(topic.partitions) for topic in topics if topic.name in failures})
            self._forget(failures)
        if views:
            self._swap({**self._by_name, **views})
        for view in views.values():
            logger.info(
                "created topic %s with %s, id %s",
                view.name,
                counted(len(view.partitions), "partition"),
                uuid_to_text(view.topic_id),
            )
        return {name: _storage_error(error) for name, error in failures.items()}

    def _forget(self, names: Iterable[str]) -> None:
        """Delete topics that could not be created from the store; if that fails, before the next ones are created."""
        try:
            self._store.remove_topics(names)
        except KafkaError:
            self._to_forget.update(names)

    def delete(self, name: str, charge: Charge = free) -> uuid.UUID:
        """Delete a topic and its logs; return its id.

        Args: ``charge`` is called with its partitions first.
        Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION, and the errors of ``charge``.
        """
        (deleted,) = self.delete_all([name], charge)
        if isinstance(deleted, KafkaError):
            raise deleted
        return deleted

    def delete_all(self, names: Sequence[str], charge: Charge = free) -> list[uuid.UUID | KafkaError]:
        """Delete topics separately, but many of them in one write, which costs as much as for one.

        Other changes happen in between; deleted topics stay deleted if others fail.
        Returns: for each its id, or the error as raised by ``delete``.
        """
        results: list[uuid.UUID | KafkaError] = []
        for start in range(0, len(names), DELETED_AT_ONCE):
            results += self._delete_some(names[start : start + DELETED_AT_ONCE], charge)
        return results

    def _delete_some(self, names: Sequence[str], charge: Charge) -> list[uuid.UUID | KafkaError]:
        results: list[uuid.UUID | KafkaError] = []
        views: dict[str, TopicView] = {}
        with self._lock:
            for name in names:
                try:
                    view = self._by_name.get(name)
                    if view is None or name in views:
                        raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
                    charge(len(view.partitions))
                except KafkaError as refusal:
                    results.append(refusal)
                else:
                    views[name] = view
                    results.append(view.topic_id)
            failures = self._forget_noted(views) if views else {}
            results = [one if isinstance(one, KafkaError) else failures.get(one, one) for one in results]
            views = {name: view for name, view in views.items() if view.topic_id not in failures}
            if views:
                self._swap({name: view for name, view in self._by_name.items() if name not in views})
                self._drop_logs({name: range(len(view.partitions)) for name, view in views.items()})
            for name, view in views.items():
                logger.info("deleted topic %s, id %s", name, uuid_to_text(view.topic_id))
        for hook in self.on_deleted:
            for name in views:
                hook(name)
        return results

    def _forget_noted(self, views: Mapping[str, TopicView]) -> dict[uuid.UUID, KafkaError]:
        """Delete topics from the store; by the note a start after a crash removes folders that were not renamed.

        Returns: by id, the errors of topics that remain.
        """
        ids = [view.topic_id for view in views.values()]
        self._logs.note_deletions(ids)
        try:
            failures = self._forget_some(views)
        except BaseException:
            self._logs.note_deletions([])
            raise
        if failures:
            self._logs.note_deletions([one for one in ids if one not in failures])
        return failures

    def _forget_some(self, views: Mapping[str, TopicView]) -> dict[uuid.UUID, KafkaError]:
        """Delete topics together, or one by one without space for that; return the errors of the others by id."""
        failures: dict[uuid.UUID, KafkaError] = {}
        try:
            self._store.remove_topics(views)
        except KafkaError as error:
            if len(views) == 1:
                return {view.topic_id: error for view in views.values()}
            for name, view in views.items():
                failures.update(self._forget_some({name: view}))
        return failures

    def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        charge: Charge = free,
    ) -> None:
        """Let a topic grow to ``count`` partitions in all.

        Args: ``charge`` is called with the new partitions if they are valid, unless they are only validated.
        Raises: KafkaError with the code and text of Kafka.
        """
        with self._lock:
            view = self._by_name.get(name)
            if view is None:
                raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
            current = len(view.partitions)
            check_more_partitions(name, current, count, assignments, self._config.node_id)
            if validate_only:
                return
            charge(count - current)
            stored = StoredTopic(name, view.topic_id, count, view.configs)
            try:
                grown = self._open(stored, range(current, count), view.partitions)
                self._logs.sync_folders()
                self._store.set_partitions(name, count)
            except Exception as error:
                self._drop_logs({name: range(current, count)})
                raise _storage_error(error) from None
            self._swap({**self._by_name, name: grown})
            logger.info("topic %s has %d partitions now", name, count)

    def set_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace the topic's configs; its logs use them when this returns.

        Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION; KAFKA_STORAGE_ERROR; the configs are then unchanged.
        """
        with self._lock:
            view = self._by_name.get(name)
            if view is None:
                raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            resolved = self.resolve(configs)
            self._store.replace_configs(TOPIC, name, configs)
            try:
                self._logs.update_configs({name: resolved})
            except Exception:
                self._store.replace_configs(TOPIC, name, view.configs)  # configs that are not in force are not stored
                raise
            fresh = view._replace(configs=dict(configs))
            self._swap({**self._by_name, name: self._retried(fresh, resolved)})

    def resolve(self, configs: Mapping[str, str], config: BrokerConfig | None = None) -> Mapping[str, ConfigValue]:
        """Return every config of a topic that sets these, with the defaults of ``config``, or else of the broker.

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
        with self._lock:
            resolved = {name: self._config.topic_configs(view.configs) for name, view in self._by_name.items()}
            self._logs.update_configs(resolved)
            views = {name: self._retried(view, resolved[name]) for name, view in self._by_name.items()}
            if any(views[name] is not view for name, view in self._by_name.items()):
                self._swap(views)

    def _retried(self, view: TopicView, resolved: Mapping[str, ConfigValue]) -> TopicView:
        """Return the view after another attempt to open offline partitions with changed configs.

        Those of ``__consumer_offsets`` wait for a restart: a coordinator must read them from their beginning.
        """
        if None not in view.partitions or view.name == OFFSETS_TOPIC or self._refused.get(view.name) == resolved:
            return view
        partitions = list(view.partitions)
        for index, present in enumerate(partitions):
            if present is None:
                try:
                    (partitions[index],) = self._logs.create_partitions(view.name, [index], view.topic_id, resolved)
                except (OSError, ValueError, KafkaError) as error:
                    logger.error("partition %s-%d stays offline: %s", view.name, index, error)
                else:
                    logger.info("partition %s-%d is online again", view.name, index)
        self._refused[view.name] = resolved
        return view._replace(partitions=tuple(partitions))

    def auto_create(self, names: Iterable[str], charge: Charge = free) -> None:
        """Create topics that a Metadata request named; those that cannot be created are left out."""
        topics = [self._automatic(name) for name in names]
        for topic, made in zip(topics, self.create_all(topics, charge=charge), strict=True):
            if isinstance(made, KafkaError):
                logger.debug("topic %s is not created: %s", topic.name, made)

    def _automatic(self, name: str) -> NewTopic:
        if name == OFFSETS_TOPIC:
            partitions = self._config.integer("offsets.topic.num.partitions")
            return NewTopic(name, partitions, configs=offsets_topic_configs(self._config))
        if name == TRANSACTION_STATE_TOPIC:
            partitions = self._config.integer("transaction.state.log.num.partitions")
            return NewTopic(name, partitions, configs=transaction_topic_configs(self._config))
        return NewTopic(name)

    def _open(self, stored: StoredTopic, indexes: Iterable[int], present: Sequence[Any] = ()) -> TopicView:
        configs = self._config.topic_configs(stored.configs)
        opened = self._logs.create_partitions(stored.name, indexes, stored.topic_id, configs)
        return self._view(stored, (*present, *opened))

    def _loaded(self, stored: StoredTopic) -> TopicView:
        opened = tuple(self._logs.partition(stored.name, index) for index in range(stored.partitions))
        return self._view(stored, opened)

    def _view(self, stored: StoredTopic, partitions: tuple[Any, ...]) -> TopicView:
        is_log = stored.name == self._config.text("kbroker.request.log.topic")
        is_internal = is_log or stored.name in INTERNAL_TOPICS
        return TopicView(stored.name, stored.topic_id, partitions, is_internal, is_log, stored.configs)

    def _drop_logs(self, partitions: Mapping[str, Iterable[int]]) -> None:
        """Remove the existing logs of these topics; a failed creation has not created all of them."""
        try:
            self._logs.delete_topics(partitions)
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


def _created(topic: StoredTopic) -> Created:
    return Created(topic.topic_id, topic.partitions, topic.configs)


def _storage_error(error: Exception) -> KafkaError:
    """Return the error for the client when a log could not be created; an unexpected one is logged."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, OSError):
        return KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Cannot create the log: {error}")
    logger.error("a log could not be made", exc_info=error)
    return KafkaError(Errors.UNKNOWN_SERVER_ERROR)


def offsets_topic_configs(config: BrokerConfig) -> dict[str, str | None]:
    """Settings of ``__consumer_offsets``: compacted; if that is refused, its records are never deleted."""
    configs: dict[str, str | None] = {
        "compression.type": "producer",
        "segment.bytes": str(config.integer("offsets.topic.segment.bytes")),
    }
    try:
        return {**configs, **check_configs({"cleanup.policy": "compact"})}
    except KafkaError:
        return {**configs, "retention.ms": "-1", "retention.bytes": "-1"}


def transaction_topic_configs(config: BrokerConfig) -> dict[str, str | None]:
    """Settings of ``__transaction_state``: compacted, never compressed."""
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(config.integer("transaction.state.log.min.isr")),
        "segment.bytes": str(config.integer("transaction.state.log.segment.bytes")),
        "unclean.leader.election.enable": "false",
    }
