"""Python's side of a request queue: receive requests and respond."""

from __future__ import annotations

from kbroker._core.clock import BaseClock
from kbroker._core.requests.request_queue import Queue
from kbroker.network.processor._inbound import ChannelThrottle, InboundRequest, SuppressedResponses, receive

__all__ = ["ChannelThrottle", "InboundRequest", "RequestChannel", "SuppressedResponses"]


_MAX_S = 4e9  # 126 years: in nanoseconds it fits 64 bits with any time added


class RequestChannel:
    """The queue between network threads and handlers written in Python (Kafka's ``RequestChannel``).

    Args:
        queue: an existing queue, or None to create one.
        capacity: capacity of the created queue (``queued.max.requests``).
        clock: clock of the created queue; None is the system's.
    Raises: TypeError, ValueError for wrong arguments.
    Threads: any number may receive; a response may come from any thread.
    """

    def __init__(self, queue: Queue | None = None, *, capacity: int = 500, clock: BaseClock | None = None) -> None:
        if queue is not None and not isinstance(queue, Queue):
            raise TypeError(f"queue must be a Queue or None, not {type(queue).__name__}")
        self.queue = Queue(capacity, clock) if queue is None else queue

    def receive(self, timeout_s: float | None = None) -> InboundRequest | None:
        """Wait for a request, without the GIL.

        Args: ``timeout_s`` seconds of the queue's clock; None waits until the channel is closed.
        Returns: a request; None at the timeout, or once the channel is closed and empty.
        Raises: TypeError if the timeout is not a number; ValueError for NaN.
        """
        if timeout_s is None:
            return receive(self.queue, -1)
        if not isinstance(timeout_s, (int, float)):
            raise TypeError(f"timeout_s must be a number of seconds or None, not {type(timeout_s).__name__}")
        if timeout_s != timeout_s:
            raise ValueError("timeout_s is not a number")
        return receive(self.queue, int(max(0, min(timeout_s, _MAX_S)) * 1e9))

    def close(self) -> None:
        """Accept no more requests; queued requests can still be received."""
        self.queue.close()

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self.queue.closed

    def __len__(self) -> int:
        return len(self.queue)
