"""pytest plugin in separate runs of pytest, alone and with xdist."""

import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import poller

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PRODUCE = """
import confluent_kafka as ck

def produce(broker, topic, value=b"x"):
    ends = []
    client = ck.Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "retry.backoff.ms": 10})
    client.produce(topic, value, partition=0, on_delivery=lambda error, _: ends.append(error))
    assert client.flush(20) == 0
    return ends[0]
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Function that runs pytest on a test file in a new process."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # the hypothesis plugin takes more than half of the start
    quick = "--strict-markers -p no:cacheprovider -p no:hypothesispytest"
    pytester.makeini(f"[pytest]\naddopts = {quick}\nfilterwarnings = error\n")
    installed = any(
        point.value == "kbroker.testing.plugin" for point in importlib.metadata.entry_points(group="pytest11")
    )

    def start(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(helper=PRODUCE, test_it=source)
        plugin: tuple[str, ...] = () if installed else ("-p", "kbroker.testing.plugin")
        if poller.WANTED:
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
            plugin += ("-p", "tests.support.poller")
        return pytester.runpytest_subprocess(*plugin, *arguments, timeout=120)

    return start


def test_the_readme_example(run: Run) -> None:
    """The example of the README passes."""
    result = run(
        """
        from confluent_kafka import Producer

        def test_orders(kafka_broker, kafka_topic):
            producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
            producer.produce(kafka_topic, b"hello")
            assert producer.flush(10) == 0
            assert [record.value for record in kafka_broker.records(kafka_topic)] == [b"hello"]
        """
    )
    result.assert_outcomes(passed=1)


def test_a_fresh_topic_for_each_test(run: Run) -> None:
    """Each test has an empty topic with a new name, deleted afterwards, on the same broker."""
    result = run(
        """
        import pytest
        from helper import produce

        seen = []

        @pytest.fixture(scope="session")
        def kafka_broker_settings():
            return {"auto.create.topics.enable": False}  # a late producer would create the topic again

        @pytest.mark.parametrize("odd", [1, 2], ids=["a/b c", "[x]:*"])
        def test_one(kafka_broker, kafka_topic, odd):
            assert kafka_broker.records(kafka_topic) == []
            assert produce(kafka_broker, kafka_topic) is None
            assert all(old not in kafka_broker.topics for old, _ in seen)
            seen.append((kafka_topic, kafka_broker))

        def test_two():
            (first, one), (second, same) = seen
            assert first != second and one is same

        def test_deleted_by_the_test(kafka_broker, kafka_topic):
            kafka_broker.delete_topic(kafka_topic)
        """
    )
    result.assert_outcomes(passed=4)


def test_the_marker_shapes_the_topic(run: Run) -> None:
    """Markers set name, partitions and configs of the topic; the closest marker or an indirect parameter takes
    precedence.
    """
    result = run(
        """
        import pytest

        pytestmark = pytest.mark.kafka_topic(partitions=2, configs={"retention.ms": "5000"})

        def test_module(kafka_broker, kafka_topic):
            assert kafka_broker.topics[kafka_topic] == 2
            assert kafka_broker.context.topics.get(kafka_topic).configs == {"retention.ms": "5000"}

        @pytest.mark.kafka_topic(partitions=4, name="mine")
        def test_function(kafka_broker, kafka_topic):
            assert (kafka_topic, kafka_broker.topics["mine"]) == ("mine", 4)

        @pytest.mark.parametrize("kafka_topic", [1, {"partitions": 3}], indirect=True, ids=["one", "three"])
        def test_indirect(kafka_broker, kafka_topic, request):
            assert kafka_broker.topics[kafka_topic] == {"one": 1, "three": 3}[request.node.callspec.id]

        @pytest.mark.kafka_topic(3)
        def test_positional(kafka_topic):
            pass

        @pytest.mark.kafka_topic(partition=3)
        def test_misspelt(kafka_topic):
            pass
        """
    )
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines_random(["*takes keyword arguments only*", "*takes name, partitions and configs*"])


def test_faults_end_with_the_test(run: Run) -> None:
    """Faults are removed after each test; a fault without the expected hits fails only its own test."""
    result = run(
        """
        from helper import produce

        def test_left_behind(kafka_faults):
            kafka_faults.add("Produce", error="NOT_LEADER_OR_FOLLOWER", count=-1)

        def test_clean(kafka_broker, kafka_topic, kafka_faults):
            assert kafka_faults.all() == []
            with kafka_faults.add("Produce", topic=kafka_topic, error="NOT_LEADER_OR_FOLLOWER"):
                assert produce(kafka_broker, kafka_topic) is None

        def test_not_met(kafka_faults):
            with kafka_faults.add("Produce", drop=True):
                pass
        """
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*fault 3 (Produce: drop) has 0 hits, expected at least 1; requests seen meanwhile: none*"]
    )


def test_the_factory_makes_and_stops(run: Run) -> None:
    """The factory creates brokers with settings, virtual time or snapshots, and stops all of them."""
    result = run(
        """
        import pytest
        from kbroker.testing import EmbeddedBroker, VirtualBroker

        made = []

        def test_make(broker_factory):
            plain = broker_factory({"num.partitions": 3})
            assert plain.config.integer("num.partitions") == 3
            moving = broker_factory(virtual_clock=True)
            before = moving.now_ms
            moving.advance_ms(1000)
            assert moving.now_ms == before + 1000
            kept = broker_factory(snapshots=True)
            kept.restore(kept.snapshot())
            later = broker_factory(start=False)
            assert [type(one) for one in (plain, moving)] == [EmbeddedBroker, VirtualBroker]
            assert [one.is_running for one in (plain, moving, kept, later)] == [True, True, True, False]
            made.extend((plain, moving, kept, later))

        def test_stopped():
            assert [one.is_running for one in made] == [False] * 4
        """
    )
    result.assert_outcomes(passed=2)


def test_settings_of_the_shared_broker(run: Run) -> None:
    """Overriding kafka_broker_settings changes the settings of the shared broker."""
    result = run(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_settings():
            return {"num.partitions": 5}

        def test_it(kafka_broker):
            assert kafka_broker.config.integer("num.partitions") == 5
        """
    )
    result.assert_outcomes(passed=1)


def test_nothing_is_loaded_before_a_broker_is_asked_for(run: Run) -> None:
    """A run without Kafka fixtures does not import the broker."""
    result = run(
        """
        import sys

        def test_it():
            assert [name for name in sys.modules if name.startswith(("kbroker.broker", "kbroker.log", "numpy"))] == []
        """
    )
    result.assert_outcomes(passed=1)


def test_under_xdist(run: Run) -> None:
    """Two workers have a broker each, so that twelve tests with the same topic name do not interfere."""
    pytest.importorskip("xdist")
    result = run(
        """
        import os, pytest
        from helper import produce

        @pytest.fixture(scope="session")
        def kafka_broker_settings():
            return {"auto.create.topics.enable": False}  # a late producer would create the topic again

        @pytest.mark.kafka_topic(name="same")
        @pytest.mark.parametrize("number", range(12))
        def test_it(kafka_broker, kafka_topic, number, worker_id):
            assert produce(kafka_broker, kafka_topic, worker_id.encode()) is None
            assert [record.value for record in kafka_broker.records(kafka_topic)] == [worker_id.encode()]
            print("served by", worker_id, kafka_broker.bootstrap_servers)
        """,
        "-n2",
        "-rP",
        *("-p", "no:benchmark"),  # before 5.3, pytest-benchmark warns that it measures nothing under xdist
    )
    result.assert_outcomes(passed=12)
    served = {line.split()[2]: line.split()[3] for line in result.outlines if line.startswith("served by")}
    assert len(served) == len(set(served.values())) == 2, served


def test_the_entry_point_is_declared() -> None:
    """The project's metadata has the entry point of the plugin."""
    tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    with open("pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    assert project["entry-points"]["pytest11"] == {"kbroker": "kbroker.testing.plugin"}


def test_the_cluster_example_of_the_docs(run: Run) -> None:
    """The example of docs/testing.md passes, in which an idempotent producer continues after a node's crash."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    (example,) = (block for block in page.split("```python\n") if block.startswith("def test_orders_survive_a_crash"))
    source = "from confluent_kafka import Producer\n\n" + example.partition("```")[0]
    shaped = """
import pytest

@pytest.mark.kafka_cluster(brokers=2, racks=["a", "b"], virtual_clock=True)
def test_shaped(kafka_cluster):
    assert [node.context.config.text("broker.rack") for node in kafka_cluster.nodes.values()] == ["a", "b"]
    kafka_cluster.advance_ms(10)
"""
    run(source + shaped).assert_outcomes(passed=2)
