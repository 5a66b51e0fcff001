"""A well-behaved client on one connection: its records must keep being acknowledged, each at the next offset."""

import threading
from dataclasses import dataclass, field

from tests.support import wire
from tests.support.broker import wait_for
from tests.support.wire import Closed, Connection


@dataclass
class SteadyProducer:
    """The only writer of partition 0 of a topic that is there; `failures` says what went wrong first."""

    bootstrap: str
    topic: str
    acknowledged: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady-producer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        request = wire.produce(self.topic, 0, wire.batch([b"steady"]))
        try:
            with Connection(self.bootstrap) as connection:
                expected = wire.end_offset(self.bootstrap, self.topic)
                while not self._stop.wait(0.005):
                    response = wire.produced(connection.ask(request))
                    if response != wire.Produced(0, expected):
                        self.failures.append(f"expected offset {expected}, got {response}")
                        return
                    expected += 1
                    self.acknowledged += 1
        except (OSError, Closed, AssertionError) as error:
            self.failures.append(repr(error))

    def is_unharmed(self) -> bool:
        """True once ten more records are acknowledged."""
        assert self.failures == []
        goal = self.acknowledged + 10
        wait_for("the steady producer goes on", lambda: self.failures or self.acknowledged >= goal, 5, 0.005)
        return self.failures == []

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(15)
