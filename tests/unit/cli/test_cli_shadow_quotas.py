"""Shadow quotas at the command line, against a scripted broker: set, shown, promoted and dropped."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from tests.support import cli
from tests.support.quota_broker import ALTER, DESCRIBE, Key, QuotaBroker

ALICE: Key = (("user", "alice"),)
APP: Key = (("client-id", "app"),)
ADDRESS: Key = (("ip", "10.0.0.1"),)


@pytest.fixture
def broker(broker: QuotaBroker) -> QuotaBroker:
    broker.quotas = {
        ALICE: {"producer_byte_rate": 1048576.0, "shadow.producer_byte_rate": 1024.0, "shadow.request_percentage": 5.0},
        APP: {"shadow.consumer_byte_rate": 512.0},
        ADDRESS: {"connection_creation_rate": 30.0, "shadow.connection_creation_rate": 30.0},
    }
    return broker


def run(broker: QuotaBroker, *args: str) -> Result:
    return cli.run(broker, "quotas", *args)


def printed(broker: QuotaBroker, *args: str) -> str:
    return cli.printed(broker, "quotas", *args)


def test_they_are_set_and_listed_like_the_others(broker: QuotaBroker) -> None:
    """Shadow quotas have the units of their enforced quotas."""
    out = printed(broker, "set", "--user", "bob", "shadow.producer_byte_rate=2 MiB/s", "shadow.request_percentage=50 %")
    assert out == "set shadow.producer_byte_rate, shadow.request_percentage of user bob\n"
    assert printed(broker, "describe", "--user", "bob").split()[5:] == [
        *("bob", "-", "-", "shadow.producer_byte_rate", "2", "MiB/s"),
        *("bob", "-", "-", "shadow.request_percentage", "50", "%"),
    ]
    assert printed(broker, "remove", "--user", "bob", "shadow.request_percentage") == (
        "removed shadow.request_percentage of user bob\n"
    )
    result = run(broker, "set", "--user", "bob", "shadow.producer_byte_rate=fast")
    assert result.exit_code == 2
    assert "shadow.producer_byte_rate: expected bytes per second" in result.stderr
    assert "did you mean" not in result.stderr


def test_resolve_shows_both(broker: QuotaBroker) -> None:
    """A shadow quota is listed with its own level below its enforced quota."""
    assert printed(broker, "resolve", "--user", "alice", "--client-id", "app", "--ip", "10.0.0.1").splitlines() == [
        "QUOTA                              LIMIT  LEVEL  SET FOR        COUNTED FOR",
        "consumer_byte_rate                     -      -  -              -",
        "shadow.consumer_byte_rate        512 B/s      7  client-id app  client-id app, all users",
        "controller_mutation_rate               -      -  -              -",
        "producer_byte_rate               1 MiB/s      3  user alice     user alice, all clients",
        "shadow.producer_byte_rate        1 KiB/s      3  user alice     user alice, all clients",
        "request_percentage                     -      -  -              -",
        "shadow.request_percentage            5 %      3  user alice     user alice, all clients",
        "connection_creation_rate            30/s      -  ip 10.0.0.1    ip 10.0.0.1",
        "shadow.connection_creation_rate     30/s      -  ip 10.0.0.1    ip 10.0.0.1",
    ]
    rows = json.loads(printed(broker, "resolve", "--user", "bob", "--json"))
    assert [(row["quota"], row["limit"]) for row in rows if "shadow" in row["quota"]] == [
        ("shadow.consumer_byte_rate", None), ("shadow.producer_byte_rate", None), ("shadow.request_percentage", None),
    ]  # fmt: skip


def test_promote_one_entity(broker: QuotaBroker) -> None:
    """The shadow limit becomes the enforced limit and the shadow is removed, in one request."""
    args = ("shadow", "promote", "--user", "alice")
    changed = (
        "~ user alice: producer_byte_rate 1 MiB/s -> 1 KiB/s\n- user alice: shadow.producer_byte_rate 1 KiB/s\n"
        "+ user alice: request_percentage 5 %\n- user alice: shadow.request_percentage 5 %\n"
    )
    before = dict(broker.quotas[ALICE])
    assert printed(broker, *args, "--dry-run") == changed
    assert broker.quotas[ALICE] == before
    assert printed(broker, *args) == changed
    assert broker.quotas[ALICE] == {"producer_byte_rate": 1024.0, "request_percentage": 5.0}
    assert [len(body["Entries"]) for _, body in broker.asked(ALTER)] == [1, 1]
    assert printed(broker, *args) == "user alice has no shadow quota\n"
    assert len(broker.asked(ALTER)) == 2


def test_promote_one_key(broker: QuotaBroker) -> None:
    """A key may be named with or without "shadow."; other shadow quotas are kept."""
    for key in ("request_percentage", "shadow.producer_byte_rate"):
        printed(broker, "shadow", "promote", "--user", "alice", key)
    assert broker.quotas[ALICE] == {"producer_byte_rate": 1024.0, "request_percentage": 5.0}
    assert printed(broker, "shadow", "drop", "--client-id", "app", "request_percentage") == (
        "client-id app has no such shadow quota\n"
    )


def test_all_in_one_request(broker: QuotaBroker) -> None:
    """Every entity is promoted in one request; an enforced limit that equals its shadow is not set again."""
    found = json.loads(printed(broker, "shadow", "promote", "--all", "--json"))
    assert {(next(iter(row["entity"].items())), row["key"]) for row in found} == {
        (("user", "alice"), "producer_byte_rate"), (("user", "alice"), "shadow.producer_byte_rate"),
        (("user", "alice"), "request_percentage"), (("user", "alice"), "shadow.request_percentage"),
        (("client-id", "app"), "consumer_byte_rate"), (("client-id", "app"), "shadow.consumer_byte_rate"),
        (("ip", "10.0.0.1"), "shadow.connection_creation_rate"),
    }  # fmt: skip
    ((_, body),) = broker.asked(ALTER)
    assert len(body["Entries"]) == 3
    assert broker.quotas == {
        ALICE: {"producer_byte_rate": 1024.0, "request_percentage": 5.0},
        APP: {"consumer_byte_rate": 512.0},
        ADDRESS: {"connection_creation_rate": 30.0},
    }
    assert printed(broker, "shadow", "drop", "--all") == "no entity has a shadow quota\n"


def test_drop(broker: QuotaBroker) -> None:
    """Enforced quotas are unchanged."""
    assert printed(broker, "shadow", "drop", "--all") == (
        "- client-id app: shadow.consumer_byte_rate 512 B/s\n"
        "- ip 10.0.0.1: shadow.connection_creation_rate 30/s\n"
        "- user alice: shadow.producer_byte_rate 1 KiB/s\n"
        "- user alice: shadow.request_percentage 5 %\n"
    )
    assert broker.quotas == {ALICE: {"producer_byte_rate": 1048576.0}, ADDRESS: {"connection_creation_rate": 30.0}}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["promote"], "expected one entity, such as --user NAME, or --all"),
        (["promote", "--all", "--user", "a"], "expected one entity, such as --user NAME, or --all"),
        (["drop", "--ip", "1.1.1.1", "--user", "a"], "expected --ip alone, got it with a user or client-id"),
        (["drop", "--all", "shadow.speed"],
         "unknown quota 'shadow.speed': expected one of connection_creation_rate, consumer_byte_rate, "
         'controller_mutation_rate, producer_byte_rate, request_percentage, or one with "shadow." before it'),
    ],
)  # fmt: skip
def test_wrong_usage_is_refused_before_a_broker_is_asked(broker: QuotaBroker, args: list[str], text: str) -> None:
    result = run(broker, "shadow", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [f"kbroker: {text}"]
    assert broker.asked(DESCRIBE) == broker.asked(ALTER) == []


def test_files_hold_shadows(broker: QuotaBroker, tmp_path: Path) -> None:
    """diff and apply treat shadow quotas like other quotas, and a misspelt key is reported."""
    path = tmp_path / "quotas.json"
    path.write_text('[{"entity": {"client-id": "app"}, "quotas": {"shadow.consumer_byte_rate": "1 KiB/s"}}]')
    assert printed(broker, "diff", str(path)) == ("~ client-id app: shadow.consumer_byte_rate 512 B/s -> 1 KiB/s\n")
    printed(broker, "apply", str(path))
    assert broker.quotas[APP] == {"shadow.consumer_byte_rate": 1024.0}
    path.write_text('[{"entity": {"client-id": "app"}, "quotas": {"shadow.consumer_byterate": 5}}]')
    result = run(broker, "apply", str(path))
    assert "did you mean shadow.consumer_byte_rate?" in result.stderr


def test_a_broker_without_shadows_is_named(broker: QuotaBroker) -> None:
    """The error of Apache Kafka, which has no such key, is explained."""
    broker.unknown_keys = {"shadow.producer_byte_rate"}
    result = run(broker, "set", "--user", "alice", "shadow.producer_byte_rate=5")
    assert result.exit_code == 1
    why = "this cluster keeps its quotas in Apache Kafka, which refuses shadow quotas"
    assert f"({why}: leave shadow.producer_byte_rate out)" in result.stderr
