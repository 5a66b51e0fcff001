"""Tests of the program with a broker in this process, which starts in milliseconds and keeps records in memory."""

import orders
import pytest

from kbroker.testing import EmbeddedBroker
from kbroker.testing.faults import FaultRules


def test_totals(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    """The total of each customer is the sum of the customer's orders."""
    for customer, amount in (("ada", 3), ("grace", 5), ("ada", 4)):
        orders.place(kafka_broker.bootstrap_servers, kafka_topic, customer, amount)
    assert orders.totals(kafka_broker.bootstrap_servers, kafka_topic, 3) == {"ada": 7, "grace": 5}


@pytest.mark.kafka_topic(partitions=3)
def test_an_order_is_stored_once(kafka_broker: EmbeddedBroker, kafka_topic: str, kafka_faults: FaultRules) -> None:
    """After a lost response to the first Produce, the client sends the order again, and it is stored once."""
    with kafka_faults.add("Produce", disconnect=True, execute=True, count=1) as fault:
        orders.place(kafka_broker.bootstrap_servers, kafka_topic, "ada", 3)
        fault.assert_hit(1)
    assert [record.value for record in kafka_broker.records(kafka_topic)] == [b"3"]
