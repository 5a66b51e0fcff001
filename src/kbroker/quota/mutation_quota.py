"""Quota of one request's topic mutations (KIP-599): created, added and deleted partitions are charged to it.

Source: ``ControllerMutationQuotaManager.scala``.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker._core.metrics.sensor import QuotaViolationError, Sensor
from kbroker.common.configs.config_def import INT32_MAX
from kbroker.common.errors import Errors, KafkaError
from kbroker.quota._client_quotas import ClientQuotaManager, NotedCounter, NotedManager

LONGEST_THROTTLE_MS = INT32_MAX  # of a response's field; Kafka truncates longer times, which may then be negative


class ThrottlingQuotaExceededError(KafkaError):
    """Refusal of a mutation by the quota (error 89). ``throttle_time_ms``: time until the quota would allow it.

    Clients get no text, as from Kafka: the response's throttle time is enough.
    """

    def __init__(self, throttle_time_ms: int) -> None:
        super().__init__(Errors.THROTTLING_QUOTA_EXCEEDED)
        self.throttle_time_ms = throttle_time_ms


class MutationQuota:
    """Quota that one request's mutations are charged to. The base class limits nothing: no mutation quota is set.

    Threads: one.
    """

    @property
    def throttle_time_ms(self) -> int:
        """Throttle time of the client, less the time since it was determined; 0 if there is none."""
        return 0

    def record(self, mutations: int) -> None:
        """Charge mutations before they are made. Raises: ThrottlingQuotaExceededError if they must not be made."""


UNBOUNDED = MutationQuota()


class ChargedMutationQuota(MutationQuota):
    """Mutation quota that a client's bucket limits; it keeps the latest delay and the time of the charge.

    A strict quota is for clients that support error 89: mutations are refused uncharged while the bucket is overdrawn;
    others are allowed as a whole, however far they overdraw it. Otherwise each mutation is charged and allowed, and
    throttles the channel later.

    Args: ``sensor``: the client's, with a token bucket: ``record`` charges and then checks, ``record_strict`` charges
    only allowed mutations; ``now_ms``: the time of quotas.
    """

    def __init__(self, sensor: Sensor | NotedCounter, now_ms: Callable[[], int], *, is_strict: bool) -> None:
        self._charge = sensor.record_strict if is_strict else sensor.record
        self._now_ms = now_ms
        self._is_strict = is_strict
        self._throttle_time_ms = 0
        self._found_ms = 0

    @property
    def throttle_time_ms(self) -> int:
        if self._throttle_time_ms == 0:
            return 0
        return max(0, self._throttle_time_ms - (self._now_ms() - self._found_ms))

    def record(self, mutations: int) -> None:
        time_ms = self._now_ms()
        try:
            self._charge(mutations, time_ms)
        except QuotaViolationError as violation:
            self._throttle_time_ms = min(violation.throttle_time_ms or 0, LONGEST_THROTTLE_MS)
            self._found_ms = time_ms
            if self._is_strict:
                raise ThrottlingQuotaExceededError(self._throttle_time_ms) from None


def new_quota(
    manager: ClientQuotaManager | NotedManager, now_ms: Callable[[], int], user: str, client_id: str, is_strict: bool
) -> MutationQuota:
    """Return the quota that one request of this user and client id is charged to.

    Args: ``is_strict``: the client supports error 89 in this version, or gets no throttle time at all.
    """
    if not manager.is_enabled:
        return UNBOUNDED
    return ChargedMutationQuota(manager.sensor(user, client_id), now_ms, is_strict=is_strict)
