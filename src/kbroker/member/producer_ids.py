"""Producer ids of a member, from blocks that the active controller allocates. Source: ``RPCProducerIdManager``."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.member.controller_channel import ControllerChannel, Outcome

logger = get_logger(__name__)

ALLOCATE_PRODUCER_IDS = 67
PREFETCH_AT = 0.9  # used fraction of a block at which the next block is requested


class RemoteProducerIds:
    """Unused producer ids.

    The next block is requested before the current one is used up. While there is none, producers try again.

    Args: ``broker_epoch`` returns the epoch of this node's registration.
    Threads: any.
    """

    def __init__(self, node_id: int, broker_epoch: Callable[[], int], channel: ControllerChannel) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._channel = channel
        self._lock = threading.Lock()
        self._current = self._following = range(0)
        self._next = 0
        self._is_requested = False

    def next(self) -> int:
        """Return an unused id; request the next block before this one is used up.

        Raises: KafkaError COORDINATOR_LOAD_IN_PROGRESS while there is no id.
        """
        with self._lock:
            if self._next >= self._current.stop:
                self._current, self._following = self._following, range(0)
                self._next = self._current.start
            used = self._next - self._current.start
            is_low = not self._following and used >= PREFETCH_AT * len(self._current)
            requests = is_low and not self._is_requested
            self._is_requested |= requests
            found = self._next if self._next < self._current.stop else None
            self._next += found is not None
        if requests:
            body = {"BrokerId": self._node_id, "BrokerEpoch": self._broker_epoch()}
            self._channel.send(ALLOCATE_PRODUCER_IDS, body, self._take)
        if found is None:
            raise KafkaError(Errors.COORDINATOR_LOAD_IN_PROGRESS, "The next block of producer ids is awaited.")
        return found

    def _take(self, outcome: Outcome) -> None:
        """Keep the new block. After an error, the next call of `next` requests a block."""
        failed = outcome.error is not None or bool(outcome.body["ErrorCode"])
        with self._lock:
            self._is_requested = False
            if not failed:
                start = outcome.body["ProducerIdStart"]
                self._following = range(start, start + outcome.body["ProducerIdLen"])
        if failed:
            text = outcome.error.message if outcome.error is not None else f"error {outcome.body['ErrorCode']}"
            logger.warning("no block of producer ids: %s", text)
