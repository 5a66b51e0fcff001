"""Lines of a container whose broker serves."""

from typing import Any, cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.container import start


class ServingBroker:
    """Description, configuration and clock of a broker."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.config = BrokerConfig(settings)
        self.clock = VirtualClock()

    def describe(self) -> str:
        return "PLAINTEXT://127.0.0.1:9092"


@pytest.mark.parametrize(
    ("settings", "addresses"),
    [
        ({"advertised.listeners": "PLAINTEXT://kafka:9092"}, "PLAINTEXT://kafka:9092"),
        ({}, "PLAINTEXT://127.0.0.1:9092"),
    ],
)
def test_the_line_of_the_start_has_the_addresses(settings: dict[str, str], addresses: str) -> None:
    """Without advertised.listeners clients get the addresses of listeners, which the line then has."""
    broker = ServingBroker({"listeners": "PLAINTEXT://127.0.0.1:9092", **settings})
    *_, last = start.lines(cast(Any, broker))
    assert f"Kafka broker started with advertised listeners: {addresses} " in last
