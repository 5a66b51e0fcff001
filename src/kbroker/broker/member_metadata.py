"""Metadata of a member over its life: fetched, registered, followed by the parts, drained at a stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from kbroker._core.clock import BaseClock
from kbroker.broker.broker_metadata import NodeLife
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.listeners import Listener
from kbroker.handlers.api_table import KafkaApis
from kbroker.log.checkpoints import META_PROPERTIES, read_meta_properties
from kbroker.log.manager import LogManager, StartCancelled
from kbroker.log.unhosted_logs import UnhostedLogs
from kbroker.member import directory_watch
from kbroker.member.directory_watch import DirectoryWatch
from kbroker.member.member import Member, supported_features
from kbroker.metadata.configs.resource_configs import broker_configs
from kbroker.metadata.log.metadata_log import MetadataLogError
from kbroker.metadata.log.snapshots import LOOK_EVERY_MS
from kbroker.requests.context import ApiContext, Endpoint


class MemberMetadata(NodeLife):
    """The metadata of a broker whose controllers are other nodes.

    Raises: MetadataLogError, MemberStartError, StartCancelled, OSError.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: BaseClock,
        logs: LogManager,
        is_cancelled: Callable[[], bool],
        on_failure: Callable[[str], None],
    ) -> None:
        self._logs = logs
        self._is_cancelled = is_cancelled
        assert logs.opened is not None
        self._dirs = logs.opened
        self._dirs.mark_untouched(-1)
        self._timeout_s = config.integer("kbroker.shutdown.timeout.ms") / 1000
        member = self.member = Member(
            config,
            clock,
            logs.metadata_dir,
            logs.directory_ids,
            self._dirs.previous_broker_epoch,
            is_cancelled,
            on_failure,
        )
        self.controller = member.metadata
        self.features = supported_features()
        self.logs = UnhostedLogs(logs)
        try:
            member.start()
            self._check_cancelled()
        except BaseException:
            member.close(self._timeout_s)
            raise
        config.set_dynamic(*broker_configs(self.controller.image, config.node_id))
        watch = DirectoryWatch(self._dirs.usable, self._dirs.metadata, member.lifecycle, on_failure)
        logs.scheduler.schedule("directory-watch", watch.look, period_ms=directory_watch.LOOK_EVERY_MS)
        logs.scheduler.schedule("metadata-snapshots", member.snapshots.look, period_ms=LOOK_EVERY_MS)

    def register(self, listeners: Iterable[Listener], advertised: dict[str, Endpoint]) -> None:
        """Register this broker, whose listeners are bound, and wait until it has caught up."""
        addresses = [one._replace(host=at.host, port=at.port) for one in listeners if (at := advertised[one.name])]
        try:
            self.member.register(addresses)
            self._check_cancelled()
        finally:
            self._logs.broker_epoch = self.member.broker_epoch
            self._dirs.mark_untouched(self.member.broker_epoch)

    def connect(self, ctx: ApiContext, apis: KafkaApis, on_versions: Callable[[], object]) -> None:
        """Connect request handlers to the active controller. Args: ``on_versions``: called when its versions change."""
        member = ctx.member = self.member
        ctx.producer_ids = member.producer_ids
        ctx.topics.create_remotely = member.topic_creation.create_for_broker
        apis.controller_versions = lambda: member.controller_versions
        member.on_controller_versions(on_versions)
        on_versions()

    def follow(self) -> None:
        """Publish the metadata to the parts from now on."""
        self.member.follow()

    def serve(self) -> None:
        """Request to be unfenced: the broker serves clients now."""
        self.member.serve()
        self._check_cancelled()

    def shut_down(self) -> None:
        """Request a controlled shutdown, in which the controller moves the leaders away."""
        self.member.shut_down(self._timeout_s)

    def fence(self) -> None:
        """End the session with the controller, which fences this broker after the session's time-out."""
        self.member.end(self._timeout_s)

    def close(self) -> None:
        """Close the metadata log. Idempotent."""
        self.member.close(self._timeout_s)

    def _check_cancelled(self) -> None:
        if self._is_cancelled():
            raise StartCancelled("the start was cancelled")


def check_formatted(config: BrokerConfig) -> None:
    """Refuse a folder of the metadata log that is not formatted: a member reads its cluster id there.

    Raises: MetadataLogError.
    """
    folder = Path(config.metadata_log_dir)
    if read_meta_properties(folder) is None:
        raise MetadataLogError(
            f"No `{META_PROPERTIES}` found in {folder} (have you run `kbroker storage format` or `kafka-storage.sh` to "
            "format the directory?)"
        )
