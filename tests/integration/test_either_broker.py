"""One folder, served by kbroker and by Apache Kafka in turns: no client can see a difference."""

from __future__ import annotations

from pathlib import Path

from tests.support import need
from tests.support.either_broker import EitherBroker
from tests.support.everything import Everything
from tests.support.ledger import Ledger, differences, take_ledger


def ledger_of(broker: EitherBroker, everything: Everything) -> Ledger:
    return take_ledger(broker.bootstrap, everything.alice, broker.sasl_bootstrap)


def test_kbroker_then_kafka_then_kbroker(tmp_path: Path) -> None:
    """A folder that kbroker filled is served by Apache Kafka, written to, and served by kbroker again."""
    need.program("java", "mvn")
    with EitherBroker(tmp_path) as broker:
        broker.start(broker.kbroker)
        everything = Everything(broker.bootstrap, broker.sasl_bootstrap)
        everything.fill()
        for _ in range(2):
            before = ledger_of(broker, everything)
            assert [subject for subject, found in before.items() if not found] == []
            broker.switch()
            after = ledger_of(broker, everything)
            found = differences(before, after)
            assert not found, "\n".join([*found, broker.tail()])
            everything.log_in(everything.by_token(everything.token))
            everything.write()
            everything.read("classic-group", "classic")
            everything.read("consumer-group", "consumer")
