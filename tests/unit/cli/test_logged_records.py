"""Records of logged Produce requests, of a log to which any client may write."""

from typing import Any

import pytest

from kbroker.cli.logged_records import LoggedRecords
from kbroker.client.cluster import Cluster
from kbroker.client.request_records import row_of
from kbroker.decoders.decoders import Decoders
from tests.support.fake_broker import FakeBroker


@pytest.mark.parametrize(
    "wrong", [{"firstOffset": -5}, {"partition": -1}, {"topic": None}, {"lastOffset": None}, {"partition": None}]
)
def test_impossible_places_of_records_are_reported(wrong: dict[str, Any]) -> None:
    """A place that no broker logs is one line of the output; it ended the command with a traceback."""
    place = {"topic": "t", "partition": 0, "firstOffset": 0, "lastOffset": 1, **wrong}
    request = {"requestApiKey": 0, "requestApiKeyName": "PRODUCE"}
    row = row_of({"time": "2026-01-02T03:04:05Z", "requestHeader": request, "response": {"appended": [place]}})
    with FakeBroker() as broker, Cluster(broker.bootstrap) as cluster:
        (line,) = LoggedRecords(cluster, Decoders()).lines(row)
    assert line == f"expected a topic, a partition and offsets from 0 in the log, got {list(place.values())}"
