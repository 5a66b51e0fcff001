"""Transactional load of the benchmarks: read_committed consumers receive what it reports as committed."""

from bench.loads.rdkafka import consume, transact
from kbroker.testing import EmbeddedBroker
from tests.support import wire


def test_every_second_transaction_is_aborted() -> None:
    """The log has all records and a marker per transaction; a read_committed consumer receives half of them."""
    with EmbeddedBroker() as broker:
        broker.create_topic("t", 1)
        figures = transact(broker.bootstrap_servers, "t", 40, 100, 10, 2)
        assert figures["committed"] == 20
        assert figures["records_per_s"] > 0
        assert wire.end_offset(broker.bootstrap_servers, "t") == 44
        assert consume(broker.bootstrap_servers, "t", 20)["read"] == 20
