"""Apache Kafka broker that the tests of this folder share.

It runs as long as the tests of the package; for that reason these tests have a folder to themselves.
"""

from collections.abc import Iterator

import pytest

from kbroker.common.security.jaas import SCRAM_MODULE
from tests.support import need
from tests.support.kafka import ApacheKafka
from tests.support.ports import free_run

LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret"'
# With these settings, the response to a heartbeat has the assignment that results from the heartbeat.
AT_ONCE = {f"group.{kind}.assignment.interval.ms": "0" for kind in ("consumer", "share", "streams")} | {
    "group.streams.initial.rebalance.delay.ms": "0"
}
SHORT_TIMES = {
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
SETTINGS = {
    **AT_ONCE,
    **SHORT_TIMES,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "log.initial.task.delay.ms": "86400000",  # the tests write records from 2023, which retention would delete
    "transaction.state.log.num.partitions": "1",  # one coordinator to wait for
    "delegation.token.secret.key": "the-key",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{LOGIN} user_alice="secret";',
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
}


@pytest.fixture(scope="session")
def login() -> str:
    """Return the login of the user alice at the second listener."""
    return LOGIN


@pytest.fixture(scope="package")
def secured_port() -> int:
    """Return a free port above two other free ports."""
    return free_run(3) + 2


@pytest.fixture(scope="package")
def kafka(secured_port: int) -> Iterator[str]:
    """Address of a broker without quotas and groups; its second listener requires a login."""
    need.program("java", "mvn")
    port = secured_port - 2
    with ApacheKafka(SETTINGS, port=port, listeners=(f"SASL_PLAINTEXT://127.0.0.1:{secured_port}",)) as broker:
        yield broker.bootstrap
