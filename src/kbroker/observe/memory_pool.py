"""Memory pool of requests, with the sensor of its depletion."""

from __future__ import annotations

from kbroker._core.clock import BaseClock
from kbroker._core.metrics.stats import Meter
from kbroker._core.requests.memory_pool import MemoryPool
from kbroker.common.configs.config import BrokerConfig
from kbroker.metrics.registry import Metrics

SOCKETS = "socket-server-metrics"


def memory_pool(config: BrokerConfig, clock: BaseClock, metrics: Metrics) -> MemoryPool | None:
    """Return the pool of ``queued.max.request.bytes``, None without a limit; a sensor records its depletion."""
    size_bytes = config.integer("queued.max.request.bytes")
    if size_bytes <= 0:
        return None
    depletion = metrics.sensor("MemoryPoolUtilization")
    share = metrics.metric_name("MemoryPoolAvgDepletedPercent", SOCKETS)
    total = metrics.metric_name("MemoryPoolDepletedTimeTotal", SOCKETS)
    depletion.add(None, Meter(share, total, unit="milliseconds"))
    return MemoryPool(size_bytes, config.integer("socket.request.max.bytes"), clock=clock, depletion=depletion)
