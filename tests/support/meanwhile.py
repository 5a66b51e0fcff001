"""Requests that begin while the logs of a topic are created, several partitions at a time."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from kbroker.metadata.topic_growth import ADDED_AT_ONCE
from kbroker.testing.waiting import wait_until
from tests.support.server import Bench, FakeLog


class Meanwhile:
    """Requests of other threads, each of which begins while a run of partitions of the topic t gets its logs.

    Args: ``requests`` by the number of the run, which ends when the request's thread waits for its turn.
    """

    def __init__(self, bench: Bench, requests: dict[int, Callable[[], object]]) -> None:
        self._create, self._lock, self._requests = bench.logs.create_partitions, bench.ctx.topics.lock, requests
        self.runs: list[list[int]] = []
        self.configs: list[Any] = []
        self.threads: list[threading.Thread] = []
        bench.logs.create_partitions = self.create  # type: ignore[method-assign, assignment]

    def create(self, topic: str, partitions: Iterable[int], topic_id: Any, configs: Any) -> list[FakeLog]:
        indexes = list(partitions)
        if topic == "t" and len(indexes) <= ADDED_AT_ONCE:
            self.runs.append(indexes)
            self.configs.append(configs["retention.ms"])
            request = self._requests.get(len(self.runs))
            if request is not None:
                self.threads.append(threading.Thread(target=request))
                self.threads[-1].start()
                wait_until(self._lock._next.locked)
        return self._create(topic, indexes, topic_id, configs)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()
