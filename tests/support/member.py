"""Member of a cluster for unit tests, whose controller is the test."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kbroker.common.errors import Errors, KafkaError
from kbroker.member.controller_channel import Outcome
from kbroker.protocol.codec import Body


@dataclass
class FakeChannel:
    """Channel that holds the requests to the controller until the test responds."""

    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    sent: list[tuple[int, Body, Callable[[Outcome], None]]] = field(default_factory=list)

    def send(
        self, api_key: int, body: Body, complete: Callable[[Outcome], None], *, version: int | None = None
    ) -> None:
        self.sent.append((api_key, body, complete))

    def respond(self, body: Body) -> None:
        """Respond to the oldest request."""
        _, _, complete = self.sent.pop(0)
        complete(Outcome(body, 0))

    def fail(self, error: Errors) -> None:
        """End the oldest request with an error."""
        _, _, complete = self.sent.pop(0)
        complete(Outcome({}, 0, KafkaError(error)))
