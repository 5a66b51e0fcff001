"""`kbroker produce`: the failure of a line."""

import pytest

from tests.support.cli import refusal, run
from tests.support.fake_broker import Body, FakeBroker

PRODUCE = 0


def test_records_before_a_line_without_an_end_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the number of records that were sent before the line; it was one less."""
    monkeypatch.setattr("kbroker.cli.produce.MAX_FRAME_BYTES", 5)
    row = {"Index": 0, "ErrorCode": 0, "BaseOffset": 0}

    def produce(version: int, body: Body) -> Body:
        return {"Responses": [{"Name": "t", "PartitionResponses": [row]}]}

    with FakeBroker() as broker:
        broker.handlers[PRODUCE] = produce
        failed = run(broker, "produce", "t", "--partition", "0", input=b"a\n" + 70_000 * b"b")
    assert refusal(failed) == "expected lines of at most 5 bytes, got a longer one; sent the 1 record before it"
