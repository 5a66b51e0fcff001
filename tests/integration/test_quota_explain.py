"""`kbroker quotas explain`: the quotas, rates and throttles of a client, with and without an HTTP port."""

import json
import re
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from kbroker.broker import Broker
from kbroker.cli import cli
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.client.quotas import QuotaClient, QuotaEntity
from kbroker.observe.xray import XRay
from kbroker.quota.explanation import UnknownConnectionError
from tests.support.console import SETTINGS
from tests.support.fixtures import fixture_of

RATE = "producer_byte_rate"
ANONYMOUS = QuotaEntity.of({"user": "ANONYMOUS"})
HOSTILE = "a\x1b[2J\x9b31m\u202eb\x07"
broker = fixture_of(Broker, SETTINGS, topics={"t": 1}, scope="module")


def explain(broker: Broker, *args: str) -> Result:
    return CliRunner().invoke(cli, ["quotas", "explain", *args], env={"KBROKER_BOOTSTRAP": broker.bootstrap_servers})


def printed(broker: Broker, *args: str) -> str:
    result = explain(broker, *args)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def produce(broker: Broker, client_id: str, size_bytes: int) -> None:
    with Cluster(broker.bootstrap_servers, client_id=client_id) as cluster, Producer(cluster) as producer:
        producer.send("t", bytes(size_bytes), partition=0)


def test_why_is_my_client_slow(broker: Broker, tmp_path: Path) -> None:
    """The output has the quota and its level, the rate, the throttled connection, and the compared quota."""
    entity, default = QuotaEntity.of({"user": "ANONYMOUS", "client-id": "slow"}), QuotaEntity.of({"client-id": None})
    plan = tmp_path / "wanted.yaml"
    plan.write_text("- {entity: {user: ANONYMOUS, client-id: slow}, quotas: {producer_byte_rate: 1 KiB/s}}\n")
    with QuotaClient(broker.bootstrap_servers) as quotas:
        quotas.alter({entity: {RATE: 10_000.0}, default: {RATE: 20_000.0}})
        with Cluster(broker.bootstrap_servers, client_id="slow") as cluster, Producer(cluster) as producer:
            producer.send("t", bytes(200_000), partition=0)
            producer.flush()
            found = printed(broker, "--client-id", "slow", "--ip", "127.0.0.1", "--compare", str(plan))
            document = json.loads(printed(broker, "--client-id", "slow", "--json", "--compare", str(plan)))
            (waiting,) = document["waiting"]
            by_id = json.loads(printed(broker, "--connection", waiting["connection"], "--json"))
        quotas.alter({entity: {RATE: None}, default: {RATE: None}})
    assert max(map(len, found.splitlines())) <= 80
    words = " ".join(found.split())
    assert "user ANONYMOUS, client-id slow, from 127.0.0.1" in words
    assert re.search(r"waits \d+\.\d s more: 127\.0\.0\.1:\d+-127\.0\.0\.1:\d+-\d-\d+ \(producer_byte_rate\)", words)
    assert "producer_byte_rate 10000 B/s set for level 1: user ANONYMOUS, client-id slow" in words
    assert re.search(r"next request waits \d+\.\d s", words)
    assert "█" in found
    assert "lost 8 client-id <default> 20000 B/s: level 1 comes first" in words
    assert re.search(r"wanted\.yaml 1 KiB/s, level 1: .* now it would delay 3 min", words)
    assert re.search(
        r"LAST VERDICTS \(UTC\) [\d:.]{12} producer_byte_rate 1\d\.\d KiB/s of 10000 B/s delay 10\.\d s", words
    )
    (quota, *_) = document["quotas"]
    assert quota["counter"]["samples"][0]["value"] > 200_000
    assert 0 < waiting["left_ms"] <= document["verdicts"][0]["delay_served_ms"]
    assert (by_id["user"], by_id["client_id"], by_id["connections"]) == ("ANONYMOUS", "slow", 1)
    assert (quota["compare"]["is_same_counter"], quota["compare"]["is_complete"]) == (True, True)


def test_only_connections_of_the_explained_client_are_examined(broker: Broker) -> None:
    """An explanation examines only connections of its client; long names are compared up to the kept length."""
    long = "ü" * 50
    with ExitStack() as opened:
        for client_id in ("first", "first", "second", long):
            opened.enter_context(Cluster(broker.bootstrap_servers, client_id=client_id)).fetch_metadata(["t"])
        facts = [one for one in broker.xray()["connections"]["shown"] if one["client_id"] == "first"]
        with patch.object(XRay, "snapshot", side_effect=AssertionError("an X-ray was taken")):
            found = broker.quota_explainer.explain("ANONYMOUS", "first", "127.0.0.1")
            assert (found["connections"], found["connections_complete"]) == (2, True)
            assert {"first", "second"} < set(found["client_ids"])
            assert broker.quota_explainer.explain("ANONYMOUS", "first", "127.0.0.9")["connections"] == 0
            assert broker.quota_explainer.explain("ANONYMOUS", long)["connections"] == 1
            assert broker.quota_explainer.explain("ANONYMOUS", long[:-30])["connections"] == 0
            by_id = broker.quota_explainer.explain(connection=facts[0]["connection"])
            assert (by_id["client_id"], by_id["address"], by_id["connections"]) == ("first", "127.0.0.1", 1)
            for unknown in ("", "1-2-3", facts[0]["connection"].replace("127", "126"), f"{facts[0]['connection']}000"):
                with pytest.raises(UnknownConnectionError):
                    broker.quota_explainer.explain(connection=unknown)


def test_an_unknown_client(broker: Broker) -> None:
    """For an unknown client, the output has the quotas that would apply, and no error."""
    found = " ".join(printed(broker, "--user", "no-one", "--client-id", "nothing").split())
    assert "the broker has neither a connection, a counter nor a verdict of this client" in found
    assert "no quota applies: producer_byte_rate" in found


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        (["--connection", "1-2-3"], 1, "no open connection has the id 1-2-3"),
        (["--connection", "\udcff"], 1, "400: the parameters cannot be read"),
        (["--connection", "x", "--user", "a"], 2, "expected --connection alone"),
        (["--ip", "nowhere"], 1, "expected an IP address, got 'nowhere'"),
        (["--http", "http://127.0.0.1:1"], 1, "http://127.0.0.1:1: "),
    ],
)
def test_what_cannot_be_explained_is_one_line(broker: Broker, args: list[str], status: int, text: str) -> None:
    """A wrong question is refused with one line, without a less precise answer."""
    result = explain(broker, *args)
    assert (result.exit_code, result.stdout) == (status, "")
    assert text in result.stderr
    assert result.stderr.count("\n") == 1


def test_control_characters_of_clients_never_reach_the_terminal(broker: Broker) -> None:
    """Control characters in a client id are shown escaped, in text and in JSON."""
    with QuotaClient(broker.bootstrap_servers) as quotas:
        quotas.alter({QuotaEntity.of({"client-id": HOSTILE}): {RATE: 100.0}})
        produce(broker, HOSTILE, 10_000)
        for args in ((), ("--json",)):
            shown = printed(broker, "--client-id", HOSTILE, *args)
            assert "\\u001b[2J\\u009b31m\\u202eb\\u0007" in shown
            assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(shown)
        quotas.alter({QuotaEntity.of({"client-id": HOSTILE}): {RATE: None}})


def test_a_broker_without_an_http_port(tmp_path: Path) -> None:
    """Without an HTTP port, the output has the quotas of the protocol, and a hint."""
    with Broker() as bare:
        with QuotaClient(bare.bootstrap_servers) as quotas:
            quotas.alter({ANONYMOUS: {RATE: 1024.0}})
        words = " ".join(printed(bare).split())
        assert "producer_byte_rate 1 KiB/s set for level 3: user ANONYMOUS" in words
        assert "has no HTTP port: start it with kbroker.metrics.listener=HOST:PORT" in words
        document = json.loads(printed(bare, "--json"))
        assert (document["source"], document["quotas"][2]["counter"]) == ("protocol", None)
