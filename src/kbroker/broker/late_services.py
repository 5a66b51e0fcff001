"""Services that start, and import their modules, at their first use: coordinators, share partitions, telemetry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kbroker._core.timer.key_signal import KeySignal
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.configs.config_telemetry import ENDPOINT, LOG_DIR
from kbroker.common.late_service import LateService
from kbroker.common.loggers import get_logger
from kbroker.log.scheduler import Scheduler
from kbroker.network.connections.closed_connections import ClosedConnections
from kbroker.requests.context import ApiContext
from kbroker.requests.peers import groups_of, share_of, transactions_of
from kbroker.telemetry.decoder import INSTALL, has_decoder

if TYPE_CHECKING:
    from kbroker.coordinator.group_service import GroupService
    from kbroker.coordinator.share.share_service import ShareService
    from kbroker.coordinator.transaction_service import TransactionService
    from kbroker.share.share_partition_service import SharePartitionService
    from kbroker.telemetry.service import TelemetryService

logger = get_logger(__name__)


def offer_coordinators(ctx: ApiContext, scheduler: Scheduler, signal: KeySignal) -> None:
    """Arrange that the coordinators and the share partitions start at the first requests about them."""
    ctx.group_service = LateService(partial(_start_groups, ctx, scheduler))
    ctx.transaction_service = LateService(partial(_start_transactions, ctx))
    ctx.share_service = LateService(partial(_start_share, ctx, scheduler))
    # The lock of this service is taken before that of the share coordinator.
    ctx.share_partition_service = LateService(partial(_start_share_partitions, ctx, signal))


def offer_telemetry(ctx: ApiContext, scheduler: Scheduler, connections: ClosedConnections) -> None:
    """Start client telemetry now if its metrics are written or forwarded, else at its first request.

    Args: ``connections`` reports the watched connections that were closed.
    Raises: ConfigError if metrics must be written or forwarded, and opentelemetry-proto is not installed.
    """
    is_eager = False
    for name in (LOG_DIR, ENDPOINT):
        if ctx.config.text(name):
            is_eager = True
            if not has_decoder():
                shown = ctx.config.text(name) if name == LOG_DIR else "[hidden]"
                raise ConfigError(name, shown, f"opentelemetry-proto is not installed: {INSTALL}", "no value")
    if not has_decoder():
        logger.info("clients are not asked for their metrics: opentelemetry-proto is not installed (%s)", INSTALL)
        return
    ctx.telemetry_service = LateService(partial(_start_telemetry, ctx, scheduler, connections))
    if is_eager:
        ctx.telemetry_service.get()


def _start_groups(ctx: ApiContext, scheduler: Scheduler) -> GroupService:
    from kbroker.coordinator.group_service import GroupService

    share = partial(share_of, ctx)
    service = GroupService(ctx.config, ctx.clock, ctx.topics, scheduler, ctx.controller, ctx.metrics, share)
    service.start()
    return service


def _start_transactions(ctx: ApiContext) -> TransactionService:
    from kbroker.coordinator.transaction_service import TransactionService

    peers = partial(groups_of, ctx), partial(transactions_of, ctx)
    service = TransactionService(ctx.config, ctx.clock, ctx.topics, ctx.producer_ids.next, *peers)
    service.start()
    return service


def _start_share(ctx: ApiContext, scheduler: Scheduler) -> ShareService:
    from kbroker.coordinator.share.share_service import ShareService

    service = ShareService(ctx.config, ctx.clock, ctx.topics, scheduler)
    service.start()
    return service


def _start_share_partitions(ctx: ApiContext, signal: KeySignal) -> SharePartitionService:
    from kbroker.coordinator.share.share_coordinator import ShareStatePersister
    from kbroker.share.share_partition_service import SharePartitionService

    persister = ShareStatePersister(partial(share_of, ctx))
    service = SharePartitionService(
        ctx.config, ctx.clock, ctx.topics, ctx.controller, ctx.features, persister, signal, ctx.metrics
    )
    service.start()
    return service


def _start_telemetry(ctx: ApiContext, scheduler: Scheduler, connections: ClosedConnections) -> TelemetryService:
    from kbroker.telemetry.service import TelemetryService

    return TelemetryService(ctx.config, ctx.clock, ctx.controller, ctx.metrics, scheduler, connections)
