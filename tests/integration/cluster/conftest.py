"""Cluster of Apache Kafka that the tests of this folder share: one controller and two brokers.

The nodes run as long as the tests of the package, because three idle JVMs take CPU time too; for that reason these
tests have a folder to themselves.
"""

from collections.abc import Iterator

import pytest

from tests.support import need
from tests.support.kafka import KafkaCluster
from tests.support.member_node import MemberNode

SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "secret of the cluster",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
}


@pytest.fixture(scope="package")
def kafka() -> Iterator[KafkaCluster]:
    """Controller 101 and the brokers 1 and 2, each with a listener without security and one with SCRAM.

    A test leaves all nodes running, and uses names of topics and users that no other test uses.
    """
    need.kafka_tools()
    with KafkaCluster(2, SECURED, controllers=1, protocol="SASL_PLAINTEXT") as cluster:
        yield cluster


@pytest.fixture(scope="package")
def member(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberNode]:
    """kbroker as node 9 of the cluster. A test that stops or kills it starts it again."""
    node = MemberNode(tmp_path_factory.mktemp("member"), kafka)
    try:
        node.start()
        yield node
        assert node.stop() == 0, node.tail()
    finally:
        node.discard()
