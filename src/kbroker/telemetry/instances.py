"""Client instances: the clients that have requested their subscription, and the limits of their requests.

Source: ``ClientMetricsInstance``, and the cache of ``ClientMetricsManager``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from uuid import UUID

from kbroker.common.errors import Errors
from kbroker.telemetry.subscriptions import ClientFacts, Requested

MAX_INSTANCES = 16_384
MIN_EXPIRY_MS = 60_000
EXPIRY_INTERVALS = 3  # push intervals without a request until an instance expires, but at least MIN_EXPIRY_MS
NEVER_MS = -(1 << 62)


class ClientInstance:
    """One client. Threads: under its manager's lock; any for attributes that never change.

    Args: ``facts``: properties of the client at its first request; ``version``: of the subscriptions from which the
    instance is created; a later version creates it again.
    """

    def __init__(self, uuid: UUID, facts: ClientFacts, principal: str, requested: Requested, version: int) -> None:
        self.uuid = uuid
        self.facts = facts
        self.principal = principal
        self.requested = requested
        self.subscription_id = requested.subscription_id(uuid)
        self.version = version
        self.is_terminating = False
        self.last_error = Errors.NONE
        self.expires_ms = 0
        self.last_get_ms = self.last_push_ms = NEVER_MS

    def accepts_get(self, now_ms: int) -> bool:
        """Return whether the push interval has passed since the last accepted get or push; if so, note this get."""
        is_due = now_ms - max(self.last_get_ms, self.last_push_ms) >= self.requested.interval_ms
        if is_due:
            self.last_get_ms = now_ms
        return is_due

    def accepts_push(self, now_ms: int) -> bool:
        """Return whether the interval has passed since the last accepted push; if so, note this push.

        The first push after an accepted get is accepted at once: clients shorten their first interval at random.
        """
        is_due = self.last_get_ms > self.last_push_ms or now_ms - self.last_push_ms >= self.requested.interval_ms
        if is_due:
            self.last_push_ms = now_ms
        return is_due

    def touch(self, now_ms: int) -> None:
        """Begin the time until the instance expires."""
        self.expires_ms = now_ms + max(MIN_EXPIRY_MS, EXPIRY_INTERVALS * self.requested.interval_ms)


class InstanceCache:
    """Instances by id, at most ``limit``; the least recently used is removed for a new one. Threads: one at a time.

    Args: ``on_removed``: called with each removed instance, but not with one that has a new instance of the same id.
    """

    def __init__(self, on_removed: Callable[[ClientInstance], object], limit: int = MAX_INSTANCES) -> None:
        self._limit = limit
        self._on_removed = on_removed
        self._instances: OrderedDict[UUID, ClientInstance] = OrderedDict()

    def get(self, uuid: UUID, now_ms: int) -> ClientInstance | None:
        """Return the instance, now the most recently used; None if it is absent or has expired."""
        found = self._instances.get(uuid)
        if found is None:
            return None
        if found.expires_ms <= now_ms:
            self.remove(uuid)
            return None
        self._instances.move_to_end(uuid)
        return found

    def put(self, instance: ClientInstance) -> None:
        """Add an instance, or replace the instance of its id, which counts as the same client."""
        self._instances[instance.uuid] = instance
        self._instances.move_to_end(instance.uuid)
        while len(self._instances) > self._limit:
            self._on_removed(self._instances.popitem(last=False)[1])

    def remove(self, uuid: UUID) -> None:
        """Remove an instance. Does nothing if it is absent."""
        found = self._instances.pop(uuid, None)
        if found is not None:
            self._on_removed(found)

    def expire(self, now_ms: int) -> None:
        """Remove the instances that have expired."""
        for uuid in [one.uuid for one in self._instances.values() if one.expires_ms <= now_ms]:
            self.remove(uuid)

    def __contains__(self, uuid: UUID) -> bool:
        return uuid in self._instances

    def __len__(self) -> int:
        return len(self._instances)

    def __iter__(self) -> Iterator[ClientInstance]:
        return iter(list(self._instances.values()))
