"""Kafka's tools for delegation tokens and features, and a Java client that logs in with a token."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import need
from tests.support.broker import BrokerProcess
from tests.support.kafka.tools import TOOLS, Tools

TOKENS, FEATURES = TOOLS + "DelegationTokenCommand", TOOLS + "FeatureCommand"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    need.kafka_tools()
    settings = {
        "node.id": "1",
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_alice="alice-secret";',
        "delegation.token.secret.key": "the-key",
    }
    with BrokerProcess(tmp_path_factory.mktemp("java-security-tools") / "data", settings) as process:
        yield process


def properties(folder: Path, mechanism: str, login: str) -> Path:
    path = folder / f"{mechanism}.properties"
    lines = ["security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", f"sasl.jaas.config={login}"]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def alice(broker: BrokerProcess, tmp_path: Path) -> Tools:
    login = f'{PLAIN} required username="alice" password="alice-secret";'
    return Tools(broker.bootstrap, properties(tmp_path, "PLAIN", login))


def test_delegation_tokens(broker: BrokerProcess, alice: Tools, tmp_path: Path) -> None:
    """A token logs a Java producer in, and can be renewed, listed and expired."""
    made = alice(TOKENS, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    (row,) = re.findall(r"^(\S+)\s+(\S{86}==)\s+User:alice\s+User:alice\s+\[User:bob\]\s+", made, re.MULTILINE)
    token_id, secret = row
    login = f'{SCRAM} required username="{token_id}" password="{secret}" tokenauth="true";'
    by_token = Tools(broker.bootstrap, properties(tmp_path, "SCRAM-SHA-256", login))
    by_token(TOOLS + "ConsoleProducer", "--topic", "lines", stdin="one\ntwo\n")
    renewal = ("--renew", "--hmac", secret, "--renew-time-period", "-1")
    assert "Completed renew operation" in alice(TOKENS, *renewal)
    assert token_id in alice(TOKENS, "--describe", "--owner-principal", "User:alice")
    assert "Completed expire operation" in alice(TOKENS, "--expire", "--hmac", secret, "--expiry-time-period", "-1")
    assert "DelegationTokenNotFoundException" in alice(TOKENS, *renewal, status=1)


def test_features(broker: BrokerProcess, alice: Tools) -> None:
    """Feature levels can be lowered and raised, and survive kill -9."""
    change = ("--feature", "transaction.version=1", "--feature", "group.version=0")
    assert "was downgraded to 1" in alice(FEATURES, "downgrade", *change)
    broker.kill()
    broker.start()
    alice.bootstrap = broker.bootstrap  # the system has chosen another port
    described = alice(FEATURES, "describe")
    (line,) = [line for line in described.splitlines() if "transaction.version" in line]
    assert re.search(
        r"SupportedMinVersion: 0\s+SupportedMaxVersion: 2\s+FinalizedVersionLevel: 1\s+Epoch: [1-9]\d*$", line
    )
    change = ("--feature", "transaction.version=2", "--feature", "group.version=1")
    assert "was upgraded to 2" in alice(FEATURES, "upgrade", *change)
