"""Reader of one partition between two offsets: the next Fetch is under way while the last response is decoded."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from kbroker.client.cluster import BACKOFF_FIRST_S, BACKOFF_MAX_S, Cluster, check, shared_version
from kbroker.client.connection import Body, BrokerConnectionError, Connection, FrameMemory
from kbroker.client.consumer import FETCH, MAX_FETCH_VERSION, FetchedPartition, fetched_partition
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.protocol._columns import ArrowColumns, whole_batches

FRAME_BYTES = 512  # maximum size of a response without its records
FIRST_VERSION_WITH_TOPIC_ID = 13


def _unreported(seconds: float) -> None:
    """Ignore a throttle."""


class TopicReplacedError(KafkaError):
    """Replacement of a topic by another one of the same name."""

    def __init__(self, topic: str, wanted: UUID, found: UUID) -> None:
        text = f"topic {topic!r} was deleted and created again (its id was {wanted} and is {found})"
        super().__init__(Errors.UNKNOWN_TOPIC_ID, text)


@dataclass(frozen=True)
class FetchSettings:
    """Limits of one Fetch in bytes and time, by the names of Kafka's consumer."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    max_partition_bytes: int = 1 << 20
    read_committed: bool = False


@dataclass(slots=True)
class _UnderWay:
    """A Fetch whose response has not been read."""

    connection: Connection
    version: int
    correlation_id: int
    position: int


@dataclass
class PartitionReader:
    """Reader of one partition from ``position`` to ``until_offset``.

    Args:
        cluster: owned by the caller; must not be used otherwise during the iteration.
        topic: name of the topic.
        partition: number of the partition.
        position: first offset to read; moves with the batches received, and may be set between two iterations.
        until_offset: the iteration ends when the position reaches it.
        topic_id: required id of the topic (checked by brokers with Fetch v13); None: any topic of that name.
        settings: sizes and waits.
        on_throttle: called with the seconds of each throttle that a consumer or request quota puts on a Fetch.

    Iterating yields the bytes of each Fetch: whole batches, possibly followed by a partial one. The next Fetch
    overwrites them. After a lost connection, a moved leader or another retriable failure it retries, until no bytes
    have arrived for ``cluster.retry_timeout_s``. A throttled Fetch is not a failure, and its throttle time does not
    count.

    Raises: KafkaError OFFSET_OUT_OF_RANGE for a position outside the log, REQUEST_TIMED_OUT when the log ends before
        ``until_offset``, CORRUPT_MESSAGE; TopicReplacedError; errors that persist after the retries.

    Threads: as its Cluster.
    """

    cluster: Cluster
    topic: str
    partition: int
    position: int
    until_offset: int
    topic_id: UUID | None = None
    settings: FetchSettings = field(default_factory=FetchSettings)
    on_throttle: Callable[[float], object] = _unreported
    _waiting_since_s: float = field(default=0.0, init=False)  # since the latest bytes, or the end of a throttle
    _memory: FrameMemory = field(init=False)

    def __post_init__(self) -> None:
        self._memory = FrameMemory(self.settings.max_partition_bytes + FRAME_BYTES)

    def __iter__(self) -> Iterator[FetchedPartition]:
        under_way: _UnderWay | None = None
        self._waiting_since_s, backoff_s = self.cluster.clock(), BACKOFF_FIRST_S
        try:
            while self.position < self.until_offset:
                part = None
                try:
                    if under_way is None:
                        under_way = self._send()
                    asked, under_way = under_way, None
                    part = self._receive(asked)
                    if part is not None and self.position < self.until_offset:
                        under_way = self._send()
                except (KafkaError, BrokerConnectionError) as failure:
                    if part is None:
                        if isinstance(failure, TopicReplacedError):
                            raise
                        if isinstance(failure, KafkaError) and not failure.error.retriable:
                            raise
                        if self.cluster.clock() + backoff_s - self._waiting_since_s > self.cluster.retry_timeout_s:
                            raise
                        self.cluster.forget(self.topic)
                        self.cluster.sleep(backoff_s)
                        backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
                        continue
                    # sending ahead failed: the request is repeated after this part, and only a new failure is handled
                if part is not None:
                    yield part
                    self._waiting_since_s, backoff_s = self.cluster.clock(), BACKOFF_FIRST_S
                elif self.cluster.clock() - self._waiting_since_s > self.cluster.retry_timeout_s:
                    raise KafkaError(
                        Errors.REQUEST_TIMED_OUT,
                        f"{self.where}: expected records up to offset {self.until_offset}, got none within "
                        f"{self.cluster.retry_timeout_s:g} s",
                    )
        finally:
            if under_way is not None:  # its response must not be taken for another's
                under_way.connection.close()

    @property
    def where(self) -> str:
        """Return partition and position, for messages."""
        return f"partition {self.topic}-{self.partition} at offset {self.position}"

    def _check_topic(self) -> None:
        if self.topic_id is not None and self.cluster.topic(self.topic).topic_id not in (None, self.topic_id):
            self.cluster.forget(self.topic)  # cached metadata may be older than the id
            found = self.cluster.topic(self.topic).topic_id
            if found is not None and found != self.topic_id:
                raise TopicReplacedError(self.topic, self.topic_id, found)

    def _send(self) -> _UnderWay:
        self._check_topic()
        connection = self.cluster.connection_to(self.cluster.leader(self.topic, self.partition))
        version = shared_version(connection, FETCH, MAX_FETCH_VERSION if self.topic_id is None else None)
        partition = {
            "Partition": self.partition,
            "FetchOffset": self.position,
            "PartitionMaxBytes": self.settings.max_partition_bytes,
        }
        name: Body = {"Topic": self.topic}
        if version >= FIRST_VERSION_WITH_TOPIC_ID:
            name = {"TopicId": self.topic_id}
        body: Body = {
            "MaxWaitMs": self.settings.max_wait_ms,
            "MinBytes": self.settings.min_bytes,
            "MaxBytes": self.settings.max_bytes,
            "IsolationLevel": int(self.settings.read_committed),
            "Topics": [{**name, "Partitions": [partition]}],
        }
        correlation_id = connection.send_request(FETCH, version, body, timeout_s=self.cluster.request_timeout_s)
        return _UnderWay(connection, version, correlation_id, self.position)

    def _receive(self, asked: _UnderWay) -> FetchedPartition | None:
        connection = asked.connection
        throttled_s = max(0.0, connection.throttled_until_s - self.cluster.clock())  # not read until then
        frame = connection.receive_response(
            asked.correlation_id,
            timeout_s=throttled_s + self.settings.max_wait_ms / 1000 + self.cluster.request_timeout_s,
            memory=self._memory,
        )
        response = connection.decode(FETCH, asked.version, frame)
        check(response.get("ErrorCode", 0), self.where)
        if not response["Responses"] and response.get("ThrottleTimeMs", 0) > 0:  # a throttled Fetch, by KIP-219
            seconds = response["ThrottleTimeMs"] / 1000
            self._waiting_since_s = self.cluster.clock() + seconds
            self.on_throttle(seconds)
            return None
        try:
            ((found,),) = (topic["Partitions"] for topic in response["Responses"])
        except ValueError:
            raise BrokerConnectionError(connection.address, "the Fetch response does not match its request") from None
        check(found["ErrorCode"], self.where)
        part = fetched_partition(self.topic, asked.position, found)
        if part is None:
            return None
        _, next_offset = whole_batches(part.data)
        if next_offset > self.position:
            self.position = next_offset
        elif next_offset >= 0:
            why = f"{self.where}: a batch that ends at offset {next_offset - 1}"
            raise ProtocolError(why, Errors.CORRUPT_MESSAGE)
        else:
            ArrowColumns(0).append(part.data, 0, 0, 0)  # raises a more precise error for damage and old formats
            raise ProtocolError(f"{self.where}: a batch cut after {len(part.data)} bytes", Errors.CORRUPT_MESSAGE)
        return part
