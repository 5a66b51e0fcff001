"""Quotas set by Kafka's kafka-configs, kafka-topics and Admin with kbroker."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import need
from tests.support.broker import BrokerProcess, run_to_end
from tests.support.kafka import compiled, java_command
from tests.support.kafka.tools import TOOLS
from tests.support.kafka.tools import Tools as KafkaTools

CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = TOOLS + "TopicCommand"
SETTINGS = {"node.id": "1"}
JAVA_PROGRAMS = Path(__file__).parents[1] / "support" / "java"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Tools(KafkaTools):
    """Kafka's tools, and programs of the tests, connected to one broker."""

    def java(self, program: str, *args: str) -> str:
        """Run a Java program of the tests with Kafka's classes."""
        command = java_command(Path(program).stem, *args, classes=compiled(JAVA_PROGRAMS / program))
        return run_to_end(command, seconds=200)

    def configs(self, *calls: Sequence[str]) -> list[list[str]]:
        """Call kafka-configs; return the sorted lines that each call printed."""
        return [sorted(line for line in self(CONFIGS, *call).splitlines() if line) for call in calls]


@pytest.fixture
def tools(broker: BrokerProcess) -> Tools:
    need.kafka_tools()
    return Tools(broker.bootstrap)


USERS_AND_CLIENTS = [
    (("--entity-type", "users", "--entity-name", "alice smith*"), "user-principal 'alice smith*'"),
    (("--entity-type", "users", "--entity-default"), "the default user-principal"),
    (("--entity-type", "clients", "--entity-name", "app"), "client-id 'app'"),
    (("--entity-type", "clients", "--entity-default"), "the default client-id"),
    (
        ("--entity-type", "users", "--entity-name", "bob", "--entity-type", "clients", "--entity-name", "app"),
        "user-principal 'bob', client-id 'app'",
    ),
    (
        ("--entity-type", "users", "--entity-name", "bob", "--entity-type", "clients", "--entity-default"),
        "user-principal 'bob', the default client-id",
    ),
    (
        ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "app"),
        "the default user-principal, client-id 'app'",
    ),
    (
        ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-default"),
        "the default user-principal, the default client-id",
    ),
]


LISTINGS = [
    ("--describe", "--entity-type", "users"),
    ("--describe", "--entity-type", "clients"),
    ("--describe", "--entity-type", "users", "--entity-type", "clients"),
]


def test_every_kind_of_user_and_client_quota(tools: Tools) -> None:
    """kafka-configs sets, lists and removes all four keys of all eight kinds of entity."""
    expected, sets, removals = {}, [], []
    for number, (entity, shown) in enumerate(USERS_AND_CLIENTS, 1):
        values = {
            "producer_byte_rate": number * 1000.0,
            "consumer_byte_rate": number * 1000.0 + 500,
            "request_percentage": number + 0.5,
            "controller_mutation_rate": number / 10,
        }
        expected[shown] = values
        given = ",".join(f"{key}={value}" for key, value in values.items())
        sets.append(("--alter", *entity, "--add-config", given))
        removals.append(("--alter", *entity, "--delete-config", ",".join(values)))
    printed = tools.configs(*sets, *LISTINGS, *removals, *LISTINGS)
    changed, listed, removed, left = printed[:8], printed[8:11], printed[11:19], printed[19:]
    assert all(line.startswith("Completed updating ") for (line,) in [*changed, *removed])
    found = {}
    for line in (line for lines in listed for line in lines):
        shown, pairs = line.removeprefix("Quota configs for ").split(" are ")
        found[shown] = {key: float(value) for key, value in (pair.split("=") for pair in pairs.split(", "))}
    assert found == expected
    assert left == [[], [], []]


def test_address_quotas(tools: Tools) -> None:
    """kafka-configs sets, lists and removes the quotas of an address and of the default address."""
    address = ("--entity-type", "ips", "--entity-name", "127.0.0.1")
    default = ("--entity-type", "ips", "--entity-default")
    every = ("--describe", "--entity-type", "ips")
    *_, listed, _, _, left = tools.configs(
        ("--alter", *address, "--add-config", "connection_creation_rate=500"),
        ("--alter", *default, "--add-config", "connection_creation_rate=1000"),
        every,
        ("--alter", *address, "--delete-config", "connection_creation_rate"),
        ("--alter", *default, "--delete-config", "connection_creation_rate"),
        every,
    )
    assert listed == [
        "Quota configs for ip '127.0.0.1' are connection_creation_rate=500.0",
        "Quota configs for the default ip are connection_creation_rate=1000.0",
    ]
    assert left == []


def test_short_options_and_refusals(tools: Tools) -> None:
    """--user and --client-defaults name the same entities; the tool prints the broker's refusal."""
    entity = ("--user", "carl", "--client-defaults")
    printed = tools(CONFIGS, "--alter", *entity, "--add-config", "producer_byte_rate=0", status=1)
    assert "Quota producer_byte_rate must be greater than 0" in printed
    _, listed, _, left = tools.configs(
        ("--alter", *entity, "--add-config", "producer_byte_rate=7"),
        ("--describe", *entity),
        ("--alter", *entity, "--delete-config", "producer_byte_rate"),
        ("--describe", "--user", "carl"),
    )
    assert listed == ["Quota configs for user-principal 'carl', the default client-id are producer_byte_rate=7.0"]
    assert left == []


def test_shadow_quotas(broker: BrokerProcess, tools: Tools) -> None:
    """Admin sets a shadow quota; kafka-configs, which refuses keys unknown to Kafka, shows and keeps it."""
    alice = ("--entity-type", "users", "--entity-name", "alice")
    assert tools.java("ShadowQuotas.java", broker.bootstrap, "alice").split() == ["{shadow.producer_byte_rate=1000.0}"]
    _, listed, _, left = tools.configs(
        ("--alter", *alice, "--add-config", "producer_byte_rate=5000"),
        ("--describe", *alice),
        ("--alter", *alice, "--delete-config", "producer_byte_rate"),
        ("--describe", *alice),
    )
    prefix = "Quota configs for user-principal 'alice' are "
    assert set(listed[0].removeprefix(prefix).split(", ")) == {
        "producer_byte_rate=5000.0", "shadow.producer_byte_rate=1000.0",
    }  # fmt: skip
    assert left == [f"{prefix}shadow.producer_byte_rate=1000.0"]


def test_broker_configs_of_quotas(tools: Tools) -> None:
    """The limits of connections change at run time, for one broker and for all brokers."""
    one = ("--entity-type", "brokers", "--entity-name", "1")
    every = ("--entity-type", "brokers", "--entity-default")
    _, _, of_one, of_all, _, _ = tools.configs(
        ("--alter", *one, "--add-config", "max.connections=900,max.connections.per.ip=800"),
        ("--alter", *every, "--add-config", "max.connection.creation.rate=700"),
        ("--describe", *one),
        ("--describe", *every),
        ("--alter", *one, "--delete-config", "max.connections,max.connections.per.ip"),
        ("--alter", *every, "--delete-config", "max.connection.creation.rate"),
    )
    shown = "\n".join(of_one)
    assert re.search(r"max\.connections=900 .*DYNAMIC_BROKER_CONFIG:max\.connections=900", shown)
    assert "max.connections.per.ip=800" in shown
    assert "max.connection.creation.rate=700" in "\n".join(of_all)


def test_quotas_survive_a_restart(broker: BrokerProcess, tools: Tools) -> None:
    """Quotas that kafka-configs set are in force after kill -9."""
    tools.configs(("--alter", "--user", "dora", "--add-config", "request_percentage=0.25"))
    broker.kill()
    broker.start()
    listed, _ = tools.configs(
        ("--describe", "--user", "dora"), ("--alter", "--user", "dora", "--delete-config", "request_percentage")
    )
    assert listed == ["Quota configs for user-principal 'dora' are request_percentage=0.25"]


def test_stock_kafka_topics_returns_at_once(tools: Tools, tmp_path: Path) -> None:
    """kafka-topics does not retry THROTTLING_QUOTA_EXCEEDED, and prints the message."""
    config = tmp_path / "client.properties"
    config.write_text("client.id=stock\n")
    tools(CONFIGS, "--alter", "--client", "stock", "--add-config", "controller_mutation_rate=0.2")
    create = ("--command-config", str(config), "--create", "--partitions", "10", "--topic")
    tools(TOPICS, *create, "stock-a")
    printed = tools(TOPICS, *create, "stock-b", status=1)
    assert "The throttling quota has been exceeded." in printed
    assert "ThrottlingQuotaExceededException" in printed
    tools(CONFIGS, "--alter", "--client", "stock", "--delete-config", "controller_mutation_rate")
    assert tools(TOPICS, "--list").split().count("stock-b") == 0


def test_admin_retries_by_default_and_not_if_set(broker: BrokerProcess, tools: Tools) -> None:
    """Java's Admin waits for the throttle time and retries; with retryOnQuotaViolation(false) it fails at once."""
    tools(CONFIGS, "--alter", "--client", "admin", "--add-config", "controller_mutation_rate=1")
    printed = tools.java("MutationRetry.java", broker.bootstrap, "admin")
    lines = {line.split()[0]: line.split()[1:] for line in printed.splitlines()}
    took = {what: int(words[0]) for what, words in lines.items()}
    assert lines["burst"][1:] == ["done"]
    # 14 mutations with a burst of 11: three seconds overdrawn when the first request is refused
    assert lines["create-once"][1] == "refused"
    assert 0 < int(lines["create-once"][2]) <= 3000
    assert lines["create-once"][3] == "The_throttling_quota_has_been_exceeded."
    assert took["create-once"] < 1500
    assert lines["create"][1:] == ["done"]
    assert lines["delete-once"][1] == "refused"
    assert lines["delete"][1:] == ["done"]
    assert took["delete"] > 500
    tools(CONFIGS, "--alter", "--client", "admin", "--delete-config", "controller_mutation_rate")
