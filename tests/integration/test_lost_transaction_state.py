"""Start after a segment of __transaction_state was emptied: the loss is reported, and producers continue."""

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from kbroker.log import checkpoints
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kill import create_topic

TOPIC, NAME = "ledger", "transfers"
TIMEOUT_S = 30.0


def transact(broker: BrokerProcess, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": NAME})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, value, partition=0)
    producer.commit_transaction(TIMEOUT_S)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_start_reports_what_is_missing(start_broker: Callable[..., BrokerProcess], is_killed: bool) -> None:
    """A line reports the partition and both offsets; a kill alone is not reported as a loss."""
    broker = start_broker()
    create_topic(broker.bootstrap, TOPIC, 1)
    transact(broker, b"first")
    path = next(broker.folder.glob("**/replication-offset-checkpoint"), broker.folder / "replication-offset-checkpoint")

    def known() -> dict[tuple[str, int], int]:
        offsets = checkpoints.offset_checkpoint(path).read()
        return {key: offset for key, offset in offsets.items() if key[0] == "__transaction_state" and offset > 0}

    wait_for("a checkpoint that knows the transactions", known)
    broker.kill()
    broker.start()
    assert "are lost" not in broker.tail(1000)
    transact(broker, b"second")
    broker.kill() if is_killed else broker.stop()
    ((key, end),) = known().items()
    (segment,) = (one for one in path.parent.glob(f"{key[0]}-{key[1]}/*.log") if one.stat().st_size)
    segment.write_bytes(b"")
    broker.start()
    (line,) = (one for one in broker.tail(1000).splitlines() if "are lost" in one)
    lost = f"the log ends at offset 0, and its high watermark in the last checkpoint is {end}"
    assert f"__transaction_state-{key[1]}: {lost}" in line
    transact(broker, b"third")
