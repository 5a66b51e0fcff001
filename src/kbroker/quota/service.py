"""The broker's metrics and client quotas with the thread and the task they need."""

from __future__ import annotations

from kbroker._core.clock import BaseClock
from kbroker._core.metrics.metric_config import MetricConfig
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.quotas import CLIENT_ID, CLIENT_KEYS, IP, USER, QuotaEntity, enforced_key
from kbroker.common.threads import have_ended, new_thread
from kbroker.log.scheduler import ScheduledTask, Scheduler
from kbroker.metrics.registry import EXPIRY_INTERVAL_MS, Metrics
from kbroker.quota._client_quotas import ClientQuotaManagers
from kbroker.quota._entities import DEFAULT_ENTITY


class QuotaService:
    """Metrics, quota managers, the thread that ends throttles, and the task that removes idle counters.

    Threads: start and close from one thread; close after the handlers have ended and before the network threads do.
    """

    def __init__(self, config: BrokerConfig, clock: BaseClock) -> None:
        defaults = MetricConfig(config.integer("metrics.num.samples"), config.integer("metrics.sample.window.ms"))
        self.metrics = Metrics(defaults, clock, expires=True)
        self.managers = ClientQuotaManagers(
            clock,
            self.metrics,
            samples=config.integer("quota.window.num"),
            window_seconds=config.integer("quota.window.size.seconds"),
            controller_samples=config.integer("controller.quota.window.num"),
            controller_window_seconds=config.integer("controller.quota.window.size.seconds"),
            max_counters=config.integer("kbroker.quota.max.counters"),
        )
        self._reaper = new_thread("ThrottledChannelReaper", self.managers.run_reaper, "throttle-reaper")
        self._expiry: ScheduledTask | None = None

    def start(self, scheduler: Scheduler) -> None:
        """Start the thread, and expire idle sensors every 30 s."""
        self._reaper.start()
        self._expiry = scheduler.schedule(
            "sensor-expiry", self._expire, delay_ms=EXPIRY_INTERVAL_MS, period_ms=EXPIRY_INTERVAL_MS
        )

    def on_quota_change(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        """Apply a changed quota or shadow of a user or client id; quotas of addresses are ignored."""
        names = entity.names
        if IP in names or enforced_key(key) not in CLIENT_KEYS:
            return
        user, client_id = (names[kind] or DEFAULT_ENTITY if kind in names else None for kind in (USER, CLIENT_ID))
        self.managers.update(user, client_id, key, value)

    def _expire(self) -> None:
        self.managers.expire_inactive()
        self.metrics.expire_inactive()

    def close(self, timeout_s: float) -> bool:
        """End the thread, then every throttle; return False, with throttles left, if the thread did not end in time."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.managers.stop_reaper()
        if not have_ended([self._reaper], timeout_s):
            return False
        self.managers.close()
        return True
