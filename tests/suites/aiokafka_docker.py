"""Docker's client for Python, as far as aiokafka's tests use it: a container of Kafka's image is this broker.

A copy named docker.py lies beside the tests. KBROKER_SERVE, KAFKA_ACLS and KAFKA_CONFIGS are commands of the broker and
of Kafka's tools; the certificates are made by aiokafka's script.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_admin="admin" user_test="test" user_test2="test2";'
)
LISTENERS = {
    "PLAINTEXT": "ADVERTISED_PORT",
    "SSL": "ADVERTISED_SSL_PORT",
    "SASL_PLAINTEXT": "ADVERTISED_SASL_PLAINTEXT_PORT",
    "SASL_SSL": "ADVERTISED_SASL_SSL_PORT",
}
TWO_MECHANISMS = re.compile(r"(SCRAM-SHA-256=\S+),(SCRAM-SHA-512=\S+)")


class Broker:
    """Container with Kafka, whose settings are those of the image."""

    def __init__(self, environment: Mapping[str, Any], certificates: Path) -> None:
        self.folder = Path(tempfile.mkdtemp())
        ports = {name: environment[variable] for name, variable in LISTENERS.items()}
        self.address = f"127.0.0.1:{ports['PLAINTEXT']}"
        settings = {
            "node.id": 0,
            "log.dirs": self.folder,
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "num.partitions": environment["NUM_PARTITIONS"],
            "group.initial.rebalance.delay.ms": 0,
            "ssl.keystore.location": certificates / "broker.pem",
            "ssl.truststore.location": certificates / "ca.crt",
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:admin;User:ANONYMOUS",  # the tools use the plaintext listener
        }
        command = shlex.split(os.environ["KBROKER_SERVE"])
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        self.process = subprocess.Popen(command)

    def exec_run(self, command: str) -> tuple[int, bytes]:
        """Run kafka-acls or kafka-configs with the broker's address in place of ZooKeeper's."""
        script, _, options = command.partition(".sh ")
        tool = os.environ["KAFKA_ACLS" if script.endswith("kafka-acls") else "KAFKA_CONFIGS"]
        place = f"--bootstrap-server {self.address}"
        options = re.sub(r"--(zookeeper |authorizer-properties zookeeper\.connect=)\S+", place, options)
        if found := TWO_MECHANISMS.search(options):  # Kafka 4 alters one credential of a user in a request
            first, second = (options.replace(found[0], found[number]) for number in (1, 2))
            status, output = self._run(f"{tool} {first}")
            return (status, output) if status else self._run(f"{tool} {second}")
        return self._run(f"{tool} {options}")

    def stop(self) -> None:
        self.process.terminate()
        print("broker ended with", self.process.wait())
        shutil.rmtree(self.folder)

    @staticmethod
    def _run(command: str) -> tuple[int, bytes]:
        done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout


class CertificateMaker:
    """Container in which the tests run gen-ssl-certs.sh."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def exec_run(self, command: list[str], user: str) -> tuple[int, bytes]:
        """Make the certificates, and of the broker's the file that the broker reads."""
        done = subprocess.run(
            ["bash", str(Path("gen-ssl-certs.sh").resolve())],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode == 0:
            parts = ((self.folder / name).read_text() for name in ("server.key", "server.crt"))
            (self.folder / "broker.pem").write_text("".join(parts))
        return done.returncode, done.stdout

    def stop(self) -> None:
        """Do nothing."""


class Containers:
    """Containers of a client."""

    def run(
        self, *, volumes: Mapping[str, Mapping[str, str]], environment: Mapping[str, Any] | None = None, **_: object
    ) -> Broker | CertificateMaker:
        (certificates,) = (Path(place) for place, bound in volumes.items() if bound["bind"] == "/ssl_cert")
        return CertificateMaker(certificates) if environment is None else Broker(environment, certificates)


class Client:
    """Client whose containers are programs of this machine."""

    def __init__(self) -> None:
        self.containers = Containers()

    def close(self) -> None:
        """Do nothing."""


def from_env() -> Client:
    return Client()


class models:
    """Types that annotations of the tests name."""

    class containers:
        Container = Broker
