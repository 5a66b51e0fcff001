"""Transactions in the console: list, abort through the coordinator, hanging transactions of a partition."""

import re

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.transactional_producer import TransactionalProducer
from kbroker.client.transactions import ActiveProducer, Transactions
from kbroker.common.errors import KafkaError
from kbroker.console.app import Console
from kbroker.testing import wait_until
from tests.support.console import SETTINGS, ask, change, preview, served, text_of
from tests.support.fixtures import fixture_of

broker = fixture_of(served, SETTINGS, topics={"orders": 2}, scope="module")


def begun(cluster: Cluster, name: str, partition: int) -> TransactionalProducer:
    producer = TransactionalProducer(cluster, name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"value", partition=partition)
    producer.flush()
    return producer


def test_a_transaction_is_aborted_by_typing_its_id(pages: Console, cluster: Cluster) -> None:
    producer = begun(cluster, "writer<b>", 0)
    assert re.search(r"writer<b> Ongoing \d+ 1 ", text_of(ask(pages, "transactions?q=WRITER&state=Ongoing")))
    assert "No transactional ids" in text_of(ask(pages, "transactions?q=writer&state=Empty"))
    page = text_of(ask(pages, "transaction?id=writer%3Cb%3E"))
    assert re.search(r"state Ongoing open for .* timeout .* Partitions of the transaction orders , 0 ", page), page
    shown = preview(pages, "", "transaction/abort", id="writer<b>")
    assert "orders, 0 open aborted" in text_of(shown)
    assert change(pages, "", "transaction/abort", "writer", id="writer<b>").status == 400
    assert Transactions(cluster).describe("writer<b>").state == "Ongoing"
    assert change(pages, "", "transaction/abort", "writer<b>", id="writer<b>").status == 303
    with pytest.raises(KafkaError):
        producer.commit_transaction()
    again = preview(pages, "", "transaction/abort", id="writer<b>")
    assert (again.status, "Expected an open transaction" in text_of(again)) == (400, True)
    assert ask(pages, "transaction?id=none").status == 404


def test_a_hanging_transaction_is_found_and_aborted(
    pages: Console, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that its coordinator does not know is listed and can be aborted; another is not listed."""
    begun(cluster, "other", 1)
    assert "Search" in text_of(ask(pages, "hanging"))
    assert "No hanging transactions" in text_of(ask(pages, "hanging?search=1&minutes=0"))
    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "list_transactions", lambda self, **more: [])
        found = re.compile(r"orders , 1 0 \d+ 0 .* ago Abort 1 to 2 of 2 partitions were examined")
        # a record of the present millisecond is not older than 0 minutes
        wait_until(lambda: found.search(text_of(ask(pages, "hanging?search=1&minutes=0&topic=orders"))), 10, "the row")
        assert "No hanging transactions" in text_of(ask(pages, "hanging?search=1&minutes=15"))
    (producer,) = Transactions(cluster).describe_producers([("orders", 1)])["orders", 1]
    place = {"topic": "orders", "partition": "1", "offset": str(producer.start_offset)}
    assert change(pages, "", "hanging/abort", **place).status == 303
    after: ActiveProducer
    (after,) = Transactions(cluster).describe_producers([("orders", 1)])["orders", 1]
    assert after.start_offset is None
    gone = preview(pages, "", "hanging/abort", **place)
    assert (gone.status, "no transaction that is open in orders, 1" in text_of(gone).lower()) == (400, True)
