"""The Apache Kafka that the tests of this folder share.

It runs as long as the tests of the package, which the folder is for that reason.
"""

from collections.abc import Iterator

import pytest

from kbroker.common.security.jaas import SCRAM_MODULE
from tests.support import need
from tests.support.kafka import ApacheKafka
from tests.support.ports import free_run

LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret"'
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "log.initial.task.delay.ms": "86400000",  # tests write records of 2023, which retention would remove
    "delegation.token.secret.key": "the-key",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{LOGIN} user_alice="secret";',
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
}


@pytest.fixture(scope="session")
def login() -> str:
    """Return the login of alice at the second listener, who has a password."""
    return LOGIN


@pytest.fixture(scope="package")
def secured_port() -> int:
    """Return a free port, the two below it too."""
    return free_run(3) + 2


@pytest.fixture(scope="package")
def kafka(secured_port: int) -> Iterator[str]:
    """host:port of a broker without quotas and groups, whose second listener demands a login."""
    need.program("java", "mvn")
    port = secured_port - 2
    with ApacheKafka(SETTINGS, port=port, listeners=(f"SASL_PLAINTEXT://127.0.0.1:{secured_port}",)) as broker:
        yield broker.bootstrap
