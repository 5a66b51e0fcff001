"""Responses of every API to clients with different ACLs, compared with those of Apache Kafka 4.3.1."""

from kbroker.testing.embedded import EmbeddedBroker
from tests.support.authorization import Table, read, settings, situations

LISTENERS = {"listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}


def test_every_decision_is_kafkas() -> None:
    """More than 16,000 responses agree in error codes, visible names and authorized operations."""
    recorded = read()
    users = list(situations())
    differences = []
    with EmbeddedBroker({**settings(), **LISTENERS}) as broker:
        addresses = {name: address for name, _, address in (one.partition("://") for one in broker.bound_listeners)}
        found = list(Table(addresses["PLAINTEXT"], addresses["SASL_PLAINTEXT"], 0.5).rows())
    assert [row[:2] for row in found] == [row[:2] for row in recorded]
    for (api, version, ours), (_, _, kafkas) in zip(found, recorded, strict=True):
        for user, our, kafka in zip(users, ours, kafkas, strict=True):
            if our != kafka:
                differences.append((api, version, user.acls, our, kafka))
    assert differences == []
    assert sum(len(row[2]) for row in recorded) == 16_308
