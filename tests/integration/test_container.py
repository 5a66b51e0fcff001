"""The container's settings and its health check, without a container: what Containerfile says is run here."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kbroker.common.configs.config import BrokerConfig, from_environment
from tests.support.broker import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")
ENV = dict(re.findall(r"^ENV (\w+)=(.*)$", TEXT, re.MULTILINE))


def words(instruction: str) -> list[str]:
    """The command in the exec form of an instruction."""
    found = re.search(rf"^{instruction}\b[^\[\n]*(\[.*\])$", TEXT, re.MULTILINE)
    assert found is not None, f"no {instruction} in the exec form"
    command: list[str] = json.loads(found[1])
    return command


def test_its_environment_is_a_valid_configuration() -> None:
    """The settings in the container's environment are known, and bind every interface for clients on localhost."""
    config = BrokerConfig(from_environment(ENV))
    assert not config.unknown
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://0.0.0.0:9092"]
    assert [str(listener) for listener in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert config.log_dir == Path("/var/lib/kbroker")


def test_advertised_listeners_by_environment() -> None:
    """Two listeners, for other containers and for the host, are a matter of three variables."""
    given = {
        **ENV,
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,HOST://:29092",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT",
        "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:9092,HOST://localhost:29092",
    }
    config = BrokerConfig(from_environment(given))
    assert [str(a) for a in config.advertised_listeners] == ["PLAINTEXT://broker:9092", "HOST://localhost:29092"]


def test_the_entry_point(tmp_path: Path) -> None:
    """The container's own command serves by its environment, gives clients the advertised address, and ends on its
    signal with 0; the health check asks it where the environment says."""
    command = words("ENTRYPOINT")
    assert command[0] == "kbroker"
    given = {
        **os.environ,
        **{name: value for name, value in ENV.items() if name != "PATH"},
        "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0",
        "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker.example:19092",
        "KAFKA_LOG_DIRS": str(tmp_path / "data"),
        "KAFKA_PROCESS_ROLES": "broker,controller",  # what other images' users set as well
    }
    (signal_name,) = re.findall(r"^STOPSIGNAL (\w+)$", TEXT, re.MULTILINE)
    started = subprocess.Popen(
        [sys.executable, "-m", "kbroker", *command[1:]],
        env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with started as process:
        try:
            assert process.stdout is not None
            assert "ready: PLAINTEXT://broker.example:19092, node 1" in process.stdout.readline()
            assert (tmp_path / "data" / "meta.properties").exists()
            process.send_signal(signal.Signals[signal_name])
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_health_of_a_running_broker(start_broker: Callable[..., BrokerProcess]) -> None:
    """The health check's own command succeeds on a broker that serves, and fails once it has stopped."""
    broker = start_broker()
    command = words("HEALTHCHECK")
    assert command[0] == "python"
    command[0] = sys.executable
    environment = {**os.environ, "KBROKER_BOOTSTRAP": broker.bootstrap}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"{broker.bootstrap} serves \d+ APIs\n", done.stdout)
    broker.kill()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"unhealthy: {broker.bootstrap}: ")
