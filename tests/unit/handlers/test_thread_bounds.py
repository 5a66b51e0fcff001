"""Thread counts that the system cannot start are refused or survived."""

import threading

import pytest

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigError
from kbroker.handlers.handler_threads import HandlerThreads
from tests.support.thread_starts import allow_threads

COUNTS = ["num.io.threads", "num.network.threads", "num.recovery.threads.per.data.dir", "log.cleaner.threads"]


@pytest.mark.parametrize("name", COUNTS)
def test_a_hundred_million_threads_are_refused(name: str) -> None:
    """A count above 1,000 is refused; with 100,000,000 a start did not end."""
    with pytest.raises(ConfigError, match=f"100000000 for configuration {name}.*1000\\b"):
        BrokerConfig({name: "100000000"})
    assert BrokerConfig({name: "100"}).integer(name) == 100


def test_threads_that_could_be_made_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that were started before a failed start are counted by the next resize."""
    leave = threading.Event()
    pool = HandlerThreads(lambda: leave.wait(30), lambda count: None)  # type: ignore[arg-type]
    allow_threads(monkeypatch, 2)
    with pytest.raises(RuntimeError, match="can't start"):
        pool.resize(5)
    monkeypatch.undo()
    pool.resize(4)
    assert len(pool.threads) == 4
    leave.set()
    for thread in pool.threads:
        thread.join(5)
