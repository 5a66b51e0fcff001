"""Kafka's tools for delegation tokens and features, unmodified, and a Java client that logs in by a token."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import need
from tests.support.broker import BrokerProcess
from tests.support.kafka import java_command

TOOLS = "org.apache.kafka.tools."
TOKENS, FEATURES = TOOLS + "DelegationTokenCommand", TOOLS + "FeatureCommand"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    need.program("java", "mvn")
    settings = {
        "node.id": "1",
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_alice="alice-secret";',
        "delegation.token.secret.key": "the-key",
    }
    process = BrokerProcess(tmp_path_factory.mktemp("java-security-tools") / "data", settings)
    try:
        process.start()
        yield process
        assert process.is_alive()
    finally:
        process.discard()


def properties(folder: Path, mechanism: str, login: str) -> Path:
    path = folder / f"{mechanism}.properties"
    lines = ["security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", f"sasl.jaas.config={login}"]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def alice(tmp_path: Path) -> Path:
    return properties(tmp_path, "PLAIN", f'{PLAIN} required username="alice" password="alice-secret";')


def run(broker: BrokerProcess, tool: str, *args: str | Path, stdin: str = "", fails: bool = False) -> str:
    """What a tool prints; ``fails``: whether it says by its exit status that it has not done what it should."""
    command = java_command(tool, "--bootstrap-server", broker.bootstrap, *(str(arg) for arg in args))
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode != 0) is fails, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr if fails else done.stdout


def test_delegation_tokens(broker: BrokerProcess, alice: Path, tmp_path: Path) -> None:
    """Made for alice, who writes by it from Java; renewed by its secret, listed, ended: then it opens nothing."""
    config = ("--command-config", alice)
    made = run(broker, TOKENS, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob", *config)
    (row,) = re.findall(r"^(\S+)\s+(\S{86}==)\s+User:alice\s+User:alice\s+\[User:bob\]\s+", made, re.MULTILINE)
    token_id, secret = row
    login = f'{SCRAM} required username="{token_id}" password="{secret}" tokenauth="true";'
    by_token = properties(tmp_path, "SCRAM-SHA-256", login)
    run(broker, TOOLS + "ConsoleProducer", "--topic", "lines", "--command-config", by_token, stdin="one\ntwo\n")
    renewed = run(broker, TOKENS, "--renew", "--hmac", secret, "--renew-time-period", "-1", *config)
    assert "Completed renew operation" in renewed
    assert token_id in run(broker, TOKENS, "--describe", "--owner-principal", "User:alice", *config)
    assert "Completed expire operation" in run(
        broker, TOKENS, "--expire", "--hmac", secret, "--expiry-time-period", "-1", *config
    )
    refused = run(broker, TOKENS, "--renew", "--hmac", secret, "--renew-time-period", "-1", *config, fails=True)
    assert "DelegationTokenNotFoundException" in refused


def test_features(broker: BrokerProcess, alice: Path) -> None:
    """Levels go down and up, and a changed one survives a killed broker."""
    config = ("--command-config", alice)
    change = ("--feature", "transaction.version=1", "--feature", "group.version=0")
    assert "was downgraded to 1" in run(broker, FEATURES, *config, "downgrade", *change)
    broker.kill()
    broker.start()
    described = run(broker, FEATURES, *config, "describe")
    (line,) = [line for line in described.splitlines() if "transaction.version" in line]
    assert re.search(r"SupportedMinVersion: 0\s+SupportedMaxVersion: 2\s+FinalizedVersionLevel: 1\s+Epoch: 1$", line)
    change = ("--feature", "transaction.version=2", "--feature", "group.version=1")
    assert "was upgraded to 2" in run(broker, FEATURES, *config, "upgrade", *change)
