"""Logs, metadata and topics of a broker, or of the nodes of an embedded cluster, which share them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker._core.clock import BaseClock
from kbroker.broker.broker_metadata import BrokerMetadata
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.late_service import LateService
from kbroker.common.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.coordinator.elections import CoordinatorElections, CoordinatorService
from kbroker.log.manager import LogManager
from kbroker.metadata.topics import TopicRegistry, TopicView
from kbroker.requests.context import ApiContext

if TYPE_CHECKING:
    from kbroker.broker.member_metadata import MemberMetadata
    from kbroker.handlers._native_apis import NativeApis


class BrokerStorage:
    """The state that remains when a node of a cluster stops.

    Args: ``config`` of the first node; ``on_failure``: called with the reason when the broker must stop.
    Raises: as ``LogManager``, ``BrokerMetadata`` and ``MemberMetadata``.
    Threads: nodes are added and removed by one thread at a time; the parts from any.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: BaseClock,
        on_failure: Callable[[str], None],
        is_cancelled: Callable[[], bool],
    ) -> None:
        if config.is_member:
            from kbroker.broker.member_metadata import check_formatted

            check_formatted(config)
        self.config = config
        self._native: dict[int, NativeApis] = {}
        self._on_failure = on_failure
        self.logs = LogManager([] if config.boolean("kbroker.in.memory") else config.log_dirs, clock, config)
        self.logs.is_cancelled = is_cancelled
        self.metadata: BrokerMetadata | MemberMetadata
        try:
            if config.is_member:
                from kbroker.broker.member_metadata import MemberMetadata

                self.metadata = MemberMetadata(config, clock, self.logs, is_cancelled, self._fail)
            else:
                self.metadata = BrokerMetadata(config, clock, self.logs, self._fail)
        except BaseException:
            self.logs.close()
            raise
        if self.logs.opened is not None and not config.is_member:  # a member watches its folders itself
            for log_dir in self.logs.opened.all:
                log_dir.on_offline = self._check_folders
        self.controller = self.metadata.controller
        self.topics = TopicRegistry(config, self.controller, self.metadata.logs, self._publish, clock)
        self.elections = CoordinatorElections()
        self.contexts: dict[int, ApiContext] = {}  # contexts of the running nodes by node id

    def load(self) -> None:
        """Open the logs of the topics, and follow the metadata from now on."""
        topics = self.topics
        topics.load()
        self.logs.mover.on_moved = lambda key: topics.record_directories([key[0]])
        self.controller.publishers += [topics, self.elections]

    @property
    def peer(self) -> NativeApis | None:
        """The native handlers of any node, None while there are no nodes."""
        return next(iter(self._native.values()), None)

    def add_node(self, node_id: int, native_apis: NativeApis) -> None:
        """Publish the topics to the native handlers of a node, now and after each change."""
        with self.topics.lock:
            self._native = {**self._native, node_id: native_apis}
            native_apis.publish_topics(self.topics.all())

    def add_context(self, ctx: ApiContext) -> Callable[[], object]:
        """Make a node a peer of the others, and make its coordinators follow the leaders of their partitions.

        Returns: a function after which the node is no longer a peer.
        """
        self.contexts[ctx.node_id] = ctx
        services: dict[str, LateService[CoordinatorService]] = {
            OFFSETS_TOPIC: ctx.group_service,
            TRANSACTION_STATE_TOPIC: ctx.transaction_service,
            SHARE_STATE_TOPIC: ctx.share_service,
        }
        self.elections.add(ctx.node_id, services)
        return partial(self.contexts.pop, ctx.node_id, None)

    def remove_node(self, node_id: int) -> None:
        """Stop publishing topics to a node, and leaders to its coordinators."""
        with self.topics.lock:
            self._native = {other: one for other, one in self._native.items() if other != node_id}
        self.elections.remove(node_id)

    def close(self) -> None:
        """Close the metadata, then the logs. Idempotent."""
        self.logs.mover.close()  # the metadata gets the folder of a move that ends now
        try:
            self.metadata.close()
        finally:
            self.logs.close()

    def _fail(self, reason: str) -> None:
        """Stop the broker. Meanwhile no record is acknowledged: the change of unknown outcome may delete its topic."""
        for native_apis in self._native.values():
            native_apis.refuse_produce()
        self._on_failure(reason)

    def _check_folders(self) -> None:
        """Stop the broker if the folder of the metadata log, or every folder of log.dirs, was removed.

        Changes would be acknowledged that are written to files without a name. On a disk that fails in another way,
        reads continue, and a change that cannot be stored is refused.
        """
        assert self.logs.opened is not None
        metadata, usable = self.logs.opened.metadata, self.logs.opened.usable
        if metadata.is_removed or all(one.is_removed for one in usable):
            removed = metadata if metadata.is_removed else usable[0]
            self._fail(
                f"the log folder {removed.path} no longer exists ({removed.failure}): restore it from a copy, or name "
                "its new path in log.dirs, and start the broker again"
            )

    def _publish(self, views: list[TopicView]) -> None:
        for native_apis in self._native.values():
            native_apis.publish_topics(views)
