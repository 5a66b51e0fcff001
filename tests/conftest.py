"""Fixtures of all suites, among them a broker process or the broker that KBROKER_TEST_BOOTSTRAP names."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import closing, long_forms, need, parallel, poller
from tests.support.broker import BrokerProcess
from tests.support.descriptors import descriptors

# Tests on a busy machine must not fail on deadlines. A change gate must give the same verdict for the same tree; new
# examples are for runs by hand and `make soak`.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", settings.get_profile("busy"), derandomize=True)
settings.load_profile("gate" if os.environ.get("CI") else "busy")

CHECKED = [Path(__file__).with_name(name) for name in ("unit", "property")]
DESCRIPTORS_LEFT = 4  # descriptors that a module may leave open, such as those of a library's threads
SOAK = os.environ.get("KBROKER_SOAK") == "1"
poller.apply()


@pytest.fixture(autouse=True, scope="module")
def no_descriptors_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the module that leaves descriptors open: select() accepts no descriptor above 1,023."""
    is_checked = sys.platform.startswith("linux") and any(request.path.is_relative_to(folder) for folder in CHECKED)
    before = descriptors() if is_checked else set()
    with closing.scope():
        yield
    if is_checked and len(descriptors() - before) > DESCRIPTORS_LEFT:
        gc.collect()  # a stopped broker is garbage with cycles
        left = descriptors() - before
        assert len(left) <= DESCRIPTORS_LEFT, f"close what these belong to, as tests/support/closing.py does: {left}"


@pytest.fixture(autouse=True)
def what_a_test_opens_is_closed() -> Iterator[None]:
    with closing.scope():
        yield


@pytest.hookimpl(trylast=True)  # the temporary folder exists by then
def pytest_configure(config: pytest.Config) -> None:
    parallel.apply(config)
    gc.disable()  # test modules are never garbage, and scanning them takes a third of a worker's start


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.failed:
        need.skip_without_package(report)
    return report


def pytest_collection_finish() -> None:
    gc.freeze()  # the collector does not scan the test modules while the tests run either
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if SOAK:
        long_forms.mark(items)
    if hasattr(config, "workerinput"):
        parallel.sort(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> parallel.Groups | None:
    return parallel.Groups(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture
def sigint_is_not_ignored() -> Iterator[None]:
    """Restore Ctrl-C in a test run that a script started in the background (``&``), which ignores SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def soak() -> bool:
    """Return True under `make soak`, where tests use their long counts."""
    return SOAK


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Yield start_broker(**settings with dots as __, wrapper=[...]), which starts a BrokerProcess for one test."""
    started: list[BrokerProcess] = []

    def start(*, folder: Path | None = None, wrapper: tuple[str, ...] = (), **settings: str) -> BrokerProcess:
        place = folder or tmp_path / f"data-{len(started)}"
        broker = BrokerProcess(place, {k.replace("__", "."): v for k, v in settings.items()}, wrapper=wrapper)
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.discard()


@pytest.fixture(scope="session")
def session_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | None]:
    """Broker that tests share; None if KBROKER_TEST_BOOTSTRAP names a foreign broker."""
    if os.environ.get("KBROKER_TEST_BOOTSTRAP"):
        yield None
        return
    # Tests open hundreds of connections at once: beyond Kafka's backlog of 50 the system delays a client for a second.
    # The delay of the first rebalance is that of the server.properties that Kafka ships.
    settings = {"socket.listen.backlog.size": "1024", "group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("shared-broker") / "data", settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def bootstrap(session_broker: BrokerProcess | None) -> str:
    """Return host:port of a running broker."""
    return session_broker.bootstrap if session_broker else os.environ["KBROKER_TEST_BOOTSTRAP"]
