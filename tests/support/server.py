"""Fakes of the components below the handlers: logs in memory and a context with them."""

import functools
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from kbroker._core.clock import SystemClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.handlers.api_table import KafkaApis
from kbroker.log.deletion_note import DeletionNotes
from kbroker.log.log_dirs import LogDirView
from kbroker.log.log_types import OffsetAndTimestamp
from kbroker.log.unhosted_logs import Logs
from kbroker.metadata.configs.resource_configs import broker_configs
from kbroker.metadata.controller import Controller
from kbroker.metadata.features import Features
from kbroker.metadata.topics import TopicRegistry
from kbroker.metrics.registry import Metrics
from kbroker.network.connections._connection_quotas import ConnectionQuotas
from kbroker.protocol import codec
from kbroker.quota._client_quotas import ClientQuotaManagers
from kbroker.requests.context import ApiContext, Body, Endpoint, RequestContext
from kbroker.security.credentials import ScramCredentials
from tests.support.metadata import DIRECTORY_ID, FailingStorage, MemoryController, StoredTopic, following, stored_topics


@dataclass
class FakeLog:
    """Partition that is a list of (timestamp, offset) pairs."""

    topic: str
    index: int
    topic_id: uuid.UUID
    configs: dict[str, Any]
    records: list[tuple[int, int]] = field(default_factory=list)
    log_start_offset: int = 0
    high_watermark: int = 0
    last_stable_offset: int = 0
    leader_epoch: int = 0
    is_closed: bool = False
    is_under_min_isr: bool = False

    def fill(self, *timestamps: int) -> None:
        self.records = [(stamp, offset) for offset, stamp in enumerate(timestamps)]
        self.high_watermark = self.last_stable_offset = len(timestamps)

    fail: Exception | None = None

    def offset_for_timestamp(self, timestamp: int, *, isolation: int = 0) -> OffsetAndTimestamp:
        if self.fail is not None:
            raise self.fail
        found = [(s, o) for s, o in self.records if s >= timestamp and o >= self.log_start_offset]
        if timestamp == -3:
            found = sorted(self.records, key=lambda record: (-record[0], record[1]))
        stamp, offset = found[0] if found else (-1, -1)
        return OffsetAndTimestamp(offset, stamp, self.leader_epoch if found else -1)

    def leader_epochs(self) -> list[tuple[int, int]]:
        return []

    @property
    def log_end_offset(self) -> int:
        return self.high_watermark


class FakeLogs:
    """Log manager in memory that records its calls and fails on demand."""

    hosts = True

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], FakeLog] = {}
        self.fail_at: tuple[str, int] | None = None
        self.fail_sync = False
        self.refuse: Callable[[Any], str] | None = None  # returns the reason why a config is refused
        self.log_dirs: list[LogDirView] = []
        self.moves: list[tuple[str, int, str]] = []
        self.tasks: Any = self
        self.syncs = 0
        self.deletions = DeletionNotes((), lambda *_: None)
        self.directory_ids = [DIRECTORY_ID]

    def start(self, topics: Any) -> None:
        for topic in topics:
            for index in range(topic.partitions):
                if self.fail_at != (topic.name, index) and not (self.refuse is not None and self.refuse(topic.config)):
                    self.create_partitions(topic.name, [index], topic.topic_id, topic.config)

    def partition(self, topic: str, partition: int) -> FakeLog | None:
        return self.open.get((topic, partition))

    def directory_of(self, topic: str, partition: int) -> uuid.UUID | None:
        return self.directory_ids[0] if (topic, partition) in self.open else None

    def create_partitions(
        self, topic: str, partitions: Iterable[int], topic_id: uuid.UUID, configs: Any, *, is_known: bool = False
    ) -> list[FakeLog]:
        made = []
        for partition in partitions:
            if self.fail_at == (topic, partition):
                raise OSError(28, "No space left on device")
            if (topic, partition) not in self.open:
                self.open[topic, partition] = FakeLog(topic, partition, topic_id, dict(configs))
            made.append(self.open[topic, partition])
        return made

    @property
    def noted(self) -> set[uuid.UUID]:
        """Topics whose deletion has begun."""
        return set(+self.deletions._planned)

    def check_config(self, config: Any) -> None:
        if self.refuse is not None and (reason := self.refuse(config)):
            raise ValueError(reason)

    def sync_folders(self) -> None:
        self.syncs += 1
        if self.fail_sync:
            raise OSError(5, "Input/output error")

    def write_log_starts(self, keys: Iterable[tuple[str, int]]) -> Collection[TopicPartition]:
        return ()

    def describe_dirs(self) -> list[LogDirView]:
        return self.log_dirs

    def move_partition(self, topic: str, partition: int, path: str) -> None:
        self.moves.append((topic, partition, path))

    def update_configs(self, configs: Any) -> None:
        for (topic, _), log in self.open.items():
            if topic in configs:
                log.configs = dict(configs[topic])

    def delete_topics(
        self, topics: Mapping[str, Iterable[int]], topic_ids: Iterable[uuid.UUID], is_last: bool = True
    ) -> None:
        self.deletions.finish(topic_ids)
        for topic, partitions in topics.items():
            for partition in partitions:
                self.open.pop((topic, partition), None)


class Completion(NamedTuple):
    """Receiver of the response of a handler that returned None."""

    complete: Callable[[Body], None]
    close: Callable[[], None] = lambda: None


@functools.cache
def served_apis() -> KafkaApis:
    """Return the table of the APIs, cached because its creation takes longer than most requests."""
    return KafkaApis()


@dataclass
class Bench:
    """Context with everything that handlers need, and ``ask``, which passes a request through codec and handler.

    Args:
        storage: of the metadata.
        settle: called after each handler returns; runs the work that completes the response.
    """

    ctx: ApiContext
    logs: FakeLogs
    published: list[list[Any]]
    storage: FailingStorage
    settle: Callable[[], object] = bool

    def serve_groups(self, coordinator: GroupCoordinator) -> None:
        """Connect the handlers to this coordinator of groups."""
        self.ctx.group_service.started = cast(Any, SimpleNamespace(coordinator=coordinator))

    def ask(self, name: str, version: int, body: Body, **facts: Any) -> Body:
        """Encode, decode and handle a request, then encode and decode the response.

        Bodies that the wire cannot carry fail here. A KafkaError becomes the API's response to that error. ``facts``
        are fields of the request such as client_id.
        """
        key = codec.api_by_name(name).key
        entry = served_apis().find(key, version)
        assert entry is not None
        assert entry.handle is not None
        decoded = codec.decode_request(key, version, codec.encode_request(key, version, body))
        completed: list[Body] = []
        request = RequestContext(key, version, completion=Completion(completed.append), **facts)
        try:
            response = entry.handle(self.ctx, decoded, request)
            if callable(response):
                response = response(self.ctx, decoded, request)
        except KafkaError as error:
            return self.failed(name, version, body, error.error)
        self.settle()
        if response is None:
            (response,) = completed
        return codec.decode_response(key, version, codec.encode_response(key, version, response))

    def failed(self, name: str, version: int, body: Body, error: Errors) -> Body:
        """Return the response to a request that fails as a whole, after encoding and decoding."""
        key = codec.api_by_name(name).key
        entry = served_apis().find(key, version)
        assert entry is not None
        assert entry.failure is not None
        decoded = codec.decode_request(key, version, codec.encode_request(key, version, body))
        response = entry.failure(decoded, error, RequestContext(key, version))
        return codec.decode_response(key, version, codec.encode_response(key, version, response))

    def use_logs(self, logs: Logs) -> TopicRegistry:
        """Replace the topic registry by a registry over other logs; return the new one."""
        publishers = self.ctx.controller.publishers
        publishers.remove(self.ctx.topics)
        self.ctx.topics = TopicRegistry(self.ctx.config, self.ctx.controller, logs, lambda topics: None, self.ctx.clock)
        publishers.insert(0, self.ctx.topics)
        return self.ctx.topics

    @property
    def stored(self) -> list[StoredTopic]:
        """Topics in the image."""
        return stored_topics(self.ctx.controller)

    def configs(self, kind: int, name: str) -> Mapping[str, str]:
        """Return the stored configs of a resource."""
        return self.ctx.image.configs.get((kind, name), {})

    def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """Create a topic and return its view."""
        rows = [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()]
        topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Configs": rows}
        response = self.ask("CreateTopics", 7, {"Topics": [topic]})
        assert response["Topics"][0]["ErrorCode"] == 0, response
        return self.ctx.topics.get(name)


def make_bench(controller: Controller | None = None, /, **config: object) -> Bench:
    """Return a bench over metadata, by default in memory; keys of configs have underscores instead of dots."""
    values = BrokerConfig({key.replace("_", "."): value for key, value in config.items()})
    storage = FailingStorage()
    if controller is None:
        controller = in_memory = MemoryController(values.node_id)
        storage = in_memory.storage
    values.set_dynamic(*broker_configs(controller.image, values.node_id))
    logs = FakeLogs()
    published: list[list[Any]] = []
    clock = SystemClock()
    topics = following(controller, TopicRegistry(values, controller, cast(Logs, logs), published.append, clock))
    apis = KafkaApis()
    ctx = ApiContext(
        values,
        controller,
        topics,
        {"PLAINTEXT": Endpoint("here", 9092)},
        apis.ranges,
        clock,
        connection_quotas=ConnectionQuotas(),
        quotas=ClientQuotaManagers(None, Metrics()),
        credentials=ScramCredentials(controller),
        delegation_tokens=None,
        features=Features(controller),
        authorizer=None,
    )
    controller.publishers += [ctx.features, ctx, ctx.quota_entities]
    return Bench(ctx, logs, published, storage)
