"""Raw requests of every advertised API and version, answered field by field as Apache Kafka answered them."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support import need
from tests.support.broker import BrokerProcess

# Cases of these folders that the broker advertises must not differ; what it does not advertise is listed as absent.
FAMILIES = (
    "api_versions/",
    "cluster/",
    "configs/",
    "fetch/",
    "find_coordinator/(?!of_transaction)",  # there are no transactions yet
    "groups/",
    "list_offsets/",
    "metadata/",
    "offsets/(?!require_stable|unused_transaction)",
    "produce/",
    "topics/",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_apache_kafkas(family: str, conform_broker: BrokerProcess) -> None:
    """No field of any answer differs from the recording of Apache Kafka."""
    tool = need.oracle("tools/conform/conform.py")
    done = subprocess.run(
        [sys.executable, str(tool), "check", conform_broker.bootstrap, "-k", f"^{family}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert "passed" in done.stdout
    assert conform_broker.is_alive()


@pytest.fixture(scope="module")
def conform_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    need.oracle("tools/conform/conform.py")
    settings = {"group.initial.rebalance.delay.ms": "0"}
    broker = BrokerProcess(tmp_path_factory.mktemp("conform") / "data", settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.discard()
