"""Consumer protocol (KIP-848) in each client that supports it: sharing, commits, leaving, patterns and migration.

tests/integration/test_consumer_groups.py has the tests of librdkafka. KBROKER_TEST_BOOTSTRAP is ignored, because the
broker needs short intervals.
"""

import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.clients.programs import go_program, java_program, node_folder
from tests.integration.test_consumer_groups import SETTINGS
from tests.support.broker import BrokerProcess, run_to_end

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ALONE = ["one has all", "two share"]
STEPS = {
    "platformatic": [*ALONE, "each record is read once", "one has left", "each record is still read once"],
    "franz-go": [*ALONE, "each record is read once", "one has left", "a static member", "a pattern"],
    "Java": [
        *ALONE,
        "a classic member has its part",
        "each record is read once",
        "one has left",
        "the classic member has all",
        "upgraded with a living member",
        "each record is still read once",
        "the newer member has all",
        "a static member",
        "comes back",
        "a pattern",
    ],
}
PROGRAMS: dict[str, Callable[[str, str], list[str]]] = {
    "franz-go": lambda address, topic: [str(go_program()), address, "groups", topic],
    "Java": lambda address, topic: [*java_program("Groups"), address, topic],
    "platformatic": lambda address, topic: ["node", str(node_folder() / "groups.mjs"), address, topic],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("consumer-protocol") / "data", SETTINGS) as broker:
        yield broker.bootstrap


@pytest.mark.parametrize("name", PROGRAMS)
def test_members(name: str, address: str) -> None:
    """The program completes each step, with each record read once."""
    topic = f"t-{uuid.uuid4().hex[:10]}-x"
    printed = run_to_end(PROGRAMS[name](address, topic), seconds=240)
    assert printed.splitlines() == STEPS[name]
