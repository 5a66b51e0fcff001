"""Kafka's kafka-transactions with kbroker, compared with `kbroker transactions`."""

import json
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException, Producer

from kbroker.cli import cli
from tests.support import need
from tests.support.broker import BrokerProcess
from tests.support.kafka.tools import TOOLS, Tools
from tests.support.kill import create_topic

SETTINGS = {"node.id": "1"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def tool(broker: BrokerProcess, *args: str, status: int = 0) -> list[list[str]]:
    """Return the sorted cells of the rows below the header; with a status above 0, the message."""
    printed = Tools(broker.bootstrap)(TOOLS + "TransactionsCommand", *args, status=status)
    if status:
        return [[printed]]
    return sorted([cell.strip() for cell in line.split("\t")[:-1]] for line in printed.splitlines()[1:])


def ours(broker: BrokerProcess, *args: str) -> Any:
    done = CliRunner().invoke(cli, ["transactions", *args, "--json", "-b", broker.bootstrap])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def cells(rows: list[dict[str, Any]], *names: str, none: str = "None") -> list[list[str]]:
    return sorted([none if row[name] is None else str(row[name]) for name in names] for row in rows)


def producer(broker: BrokerProcess, name: str) -> Producer:
    made = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    made.init_transactions(30)
    made.begin_transaction()
    made.produce("t", b"x", partition=0)
    made.produce("t", b"x", partition=1)
    assert made.flush(30) == 0
    return made


def test_the_tool_shows_and_ends_transactions(broker: BrokerProcess) -> None:
    """list, describe, describe-producers and find-hanging agree; abort and forced termination work."""
    need.kafka_tools()
    create_topic(broker.bootstrap, "t", 2)
    producer(broker, "idle").commit_transaction(30)
    busy = producer(broker, "busy")
    listed = tool(broker, "list")
    assert listed == cells(ours(broker, "list"), "transactional_id", "coordinator", "producer_id", "state")
    assert [row[0::3] for row in listed] == [["busy", "Ongoing"], ["idle", "CompleteCommit"]]
    (described,) = tool(broker, "describe", "--transactional-id", "busy")
    (row,) = ours(broker, "describe", "busy")
    names = ["coordinator", "transactional_id", "producer_id", "producer_epoch", "state", "timeout_ms", "start_time_ms"]
    assert [described[:7]] == cells([row], *names)
    assert sorted(described[8].split(",")) == [f"{place['topic']}-{place['partition']}" for place in row["partitions"]]
    seen = tool(broker, "describe-producers", "--topic", "t", "--partition", "0")
    columns = ["producer_id", "producer_epoch", "coordinator_epoch", "last_sequence", "last_timestamp_ms"]
    assert seen == cells(ours(broker, "describe-producers", "t", "0"), *columns, "start_offset")
    assert [row[5] for row in seen] == ["None", "2"]
    assert tool(broker, "find-hanging", "--topic", "t", "--max-transaction-timeout", "0") == []
    ((refused,),) = tool(broker, "describe", "--transactional-id", "absent", status=1)
    assert "the ID could not be found" in refused
    assert tool(broker, "abort", "--topic", "t", "--partition", "1", "--start-offset", "2") == []
    assert [row["start_offset"] for row in ours(broker, "describe-producers", "t", "1")] == [None, None]
    assert tool(broker, "forceTerminateTransaction", "--transactionalId", "busy") == []
    assert ours(broker, "describe", "busy")[0]["state"] in ("Empty", "CompleteAbort")
    with pytest.raises(KafkaException):
        busy.commit_transaction(30)
