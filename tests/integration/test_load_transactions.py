"""The transactional load of the benchmarks: what it says it committed is what readers of committed records get."""

from bench.loads.rdkafka import consume, transact
from kbroker.testing import EmbeddedBroker
from tests.support import wire


def test_every_second_transaction_is_aborted() -> None:
    """All records and a marker for each transaction are in the log; a reader gets the committed ones only."""
    with EmbeddedBroker() as broker:
        broker.create_topic("t", 1)
        figures = transact(broker.bootstrap_servers, "t", 40, 100, 10, 2)
        assert figures["committed"] == 20
        assert figures["records_per_s"] > 0
        assert wire.end_offset(broker.bootstrap_servers, "t") == 44
        assert consume(broker.bootstrap_servers, "t", 20)["read"] == 20
