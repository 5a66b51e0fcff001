"""Suggestions for misspelled names, and names that are rejected because they resemble a known name."""

import json
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.common.configs.config import check_broker_names
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.quota_limits import check_key
from kbroker.common.similar_names import ALMOST, did_you_mean, similar_name
from kbroker.testing import EmbeddedBroker

NAMES = ("Produce", "Fetch", "ListOffsets")


@pytest.mark.parametrize(
    ("name", "found"),
    [("Produse", "Produce"), ("fetch", "Fetch"), ("LISTOFSETS", "ListOffsets"), ("Heartbeat", None), ("", None)],
)
def test_the_most_similar_name(name: str, found: str | None) -> None:
    """The case of letters is ignored, and a dissimilar name has no suggestion."""
    assert similar_name(name, NAMES) == found
    assert did_you_mean(name, NAMES) == ("" if found is None else f"; did you mean {found}?")


def test_likeness() -> None:
    """A name that is only related is not a misspelling."""
    assert similar_name("Producer quota", NAMES) == "Produce"
    assert similar_name("Producer quota", NAMES, ALMOST) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num.partitons", "num.partitions"),
        ("Log.Dirs", "log.dirs"),
        ("num_partitions", "num.partitions"),
        ("listener.name.internal.max.conections", "listener.name.internal.max.connections"),
        ("kbroker.metrics.listner", "kbroker.metrics.listener"),
    ],
)
def test_a_misspelled_config(name: str, meant: str) -> None:
    """The error suggests the intended config."""
    with pytest.raises(ConfigError) as refused:
        check_broker_names(["num.partitions", name])
    assert str(refused.value) == f"unknown config {name}; did you mean {meant}?"


def test_names_that_are_not_misspelled() -> None:
    """Apache Kafka's configs that this broker lacks, removed configs, and configs of plugins are accepted."""
    table = json.loads((Path(__file__).parents[2] / "support/kafka_config_values.json").read_text())
    names = {name for scope in ("broker", "brokers") for name in table[scope] if name == name.lower().strip()}
    check_broker_names(
        [
            *names, "quota.producer.default", "delegation.token.master.key", "controller.quorum.voters",
            "zookeeper.connect", "my.reporter.url", "listener.name.internal.sasl.enabled.mechanisms",
        ]
    )  # fmt: skip


def test_a_file_warns(caplog: pytest.LogCaptureFixture) -> None:
    """A broker with an unknown config starts, and its warning suggests the intended name."""
    with Broker({"kbroker.in.memory": True, "listeners": "PLAINTEXT://127.0.0.1:0", "num.partitons": 4}):
        pass
    assert "unknown setting num.partitons is ignored; did you mean num.partitions?" in caplog.messages


def test_a_broker_of_a_test() -> None:
    """A program that creates a broker gets the error at once."""
    with pytest.raises(ConfigError, match=r"unknown config num.partitons; did you mean num.partitions\?$"):
        EmbeddedBroker({"num.partitons": 4})


def test_quota_keys() -> None:
    """Misspelled quotas and shadow quotas are rejected; a key unlike all known keys is left to the broker."""
    for key in ("producer_byte_rate", "shadow.request_percentage", "a_quota_of_tomorrow"):
        check_key(key)
    with pytest.raises(ValueError, match=r"^unknown quota 'producer_byterate'; did you mean producer_byte_rate\?$"):
        check_key("producer_byterate")
    with pytest.raises(ValueError, match=r"did you mean shadow.producer_byte_rate\?$"):
        check_key("shadow.producer_byte_rat")
