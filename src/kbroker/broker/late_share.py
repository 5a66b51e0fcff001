"""Start of share groups' state and deliveries, each at its first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker._core.timer.key_signal import KeySignal
from kbroker.broker.late_service import LateService
from kbroker.common.topic_names import SHARE_STATE_TOPIC
from kbroker.log.scheduler import Scheduler
from kbroker.metadata.controller import Controller
from kbroker.metadata.features import Features
from kbroker.requests.context import ApiContext
from kbroker.requests.peers import share_of

if TYPE_CHECKING:
    from kbroker.coordinator.share.share_service import ShareService
    from kbroker.share.share_partition_service import SharePartitionService


class LateShare:
    """The share coordinator and the share partitions of a broker; their modules are imported when they start.

    Threads: ``open`` and ``close`` from one thread; requests, which start both, from any.
    """

    def __init__(
        self, ctx: ApiContext, scheduler: Scheduler, controller: Controller, features: Features, signal: KeySignal
    ) -> None:
        self._ctx = ctx
        self._scheduler = scheduler
        self._controller = controller
        self._features = features
        self._signal = signal
        self._service = LateService(self._start)
        self._partitions = LateService(self._start_partitions)  # its lock is taken before that of the coordinator

    def open(self, on_stop: Callable[[str, Callable[[], object]], None], timeout_s: float) -> None:
        """Make the first requests about them start the share coordinator and the share partitions."""
        self._ctx.start_share = self._service.get
        self._ctx.start_share_partitions = lambda: self._partitions.get().manager
        on_stop("share coordinator", lambda: self._service.close(lambda service: service.close()))
        on_stop("share partitions", lambda: self._partitions.close(lambda service: service.close(timeout_s)))

    def resume(self) -> None:
        """Start the coordinator if its topic exists."""
        if self._ctx.topics.get(SHARE_STATE_TOPIC) is not None:
            self._service.get()

    @property
    def is_idle(self) -> bool:
        """Return whether no share fetch is being served."""
        return self._partitions.started is None or self._partitions.started.manager.is_idle

    def _start(self) -> ShareService:
        from kbroker.coordinator.share.share_service import ShareService

        service = ShareService(self._ctx.config, self._ctx.clock, self._ctx.topics, self._scheduler)
        service.start()
        self._ctx.share_service = service
        return service

    def _start_partitions(self) -> SharePartitionService:
        from kbroker.coordinator.share.share_coordinator import ShareStatePersister
        from kbroker.share.share_partition_service import SharePartitionService

        service = SharePartitionService(
            self._ctx.config,
            self._ctx.clock,
            self._ctx.topics,
            self._controller,
            self._features,
            ShareStatePersister(partial(share_of, self._ctx)),
            self._signal,
            self._ctx.metrics,
        )
        service.start()
        self._ctx.share_partition_manager = service.manager
        return service
