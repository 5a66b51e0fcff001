"""Health check: one attempt, or a wait for a broker that is starting."""

from typing import Any

import pytest

from kbroker.client import health
from kbroker.client.connection import BrokerConnectionError
from tests.support.fake_broker import FakeBroker
from tests.support.fake_log import FakeTime
from tests.support.ports import free_run


def test_a_broker_that_responds(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """The line has the number of APIs, and the exit status is 0."""
    assert health.main([broker.bootstrap]) == 0
    assert capsys.readouterr().out == f"{broker.bootstrap} serves {len(broker.ranges)} APIs\n"


@pytest.mark.parametrize("seconds", ["-1", "nan", "1e30"])
def test_a_time_that_no_clock_measures(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A time-out out of range is reported by one line and status 1, like every failure."""
    assert health.main(["127.0.0.1:1", "--timeout", seconds]) == 1
    assert capsys.readouterr().err.startswith("unhealthy: expected a time-out of 0 to ")


def test_a_wait_of_nan(capsys: pytest.CaptureFixture[str]) -> None:
    """A wait that is not a number ends with the first refused connection."""
    assert health.main([f"127.0.0.1:{free_run(1)}", "--wait", "nan"]) == 1
    assert "connection refused" in capsys.readouterr().err


def test_waiting(broker: FakeBroker, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection is retried until the time-out, and is then raised as the error."""
    unused = f"127.0.0.1:{free_run(1)}"
    times: dict[str, Any] = {"clock": fake_time.clock, "sleep": fake_time.sleep}
    with pytest.raises(BrokerConnectionError, match="connection refused"):
        health.wait_for(unused, 0.0, **times)
    assert fake_time.slept == []
    with pytest.raises(BrokerConnectionError, match="connection refused"):
        health.wait_for(unused, 1.0, **times)
    assert 1.0 <= sum(fake_time.slept) < 1.1
    refused = [BrokerConnectionError(broker.address, "connection refused")] * 3
    check = health.check

    def starting(bootstrap: str, timeout_s: float) -> str:
        if refused:
            raise refused.pop()
        return check(bootstrap, timeout_s)

    monkeypatch.setattr(health, "check", starting)
    assert health.wait_for(broker.bootstrap, 10.0, **times).startswith(broker.bootstrap)
