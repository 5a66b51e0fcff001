"""Commands that look up the HTTP port of a broker."""

import socket
from collections.abc import Iterator

import pytest

from kbroker.cli import options
from tests.support.cli import refusal, run


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield the address of a broker that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("command", ["xray", "quotas explain"])
def test_a_broker_that_takes_no_requests(silent: str, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Without a response the error names --http after a short time-out, which once was half a minute."""
    monkeypatch.setattr(options, "FIND_TIMEOUT_S", 0.2)
    said = refusal(run(None, *command.split(), "-b", silent))
    assert said.startswith(f"{silent}: ")
    assert said.endswith(", so its HTTP port is unknown; give --http URL")
