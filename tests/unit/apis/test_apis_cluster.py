"""DescribeCluster in cases without a recorded response of Kafka."""

import pytest

from tests.support.metadata import MemoryController, change
from tests.support.metadata_images import broker, read
from tests.support.server import make_bench


@pytest.mark.parametrize(("version", "wants_fenced"), [(0, False), (1, False), (2, False), (2, True)])
def test_fenced_brokers_are_returned_on_request(version: int, wants_fenced: bool) -> None:
    """A fenced broker is in the response only if the client requests such brokers, which version 2 allows."""
    controller = MemoryController()
    change(controller, *read([broker(2, Rack="b", Fenced=False), broker(3, Fenced=True)]))
    body = {"IncludeClusterAuthorizedOperations": False}
    if version >= 1:
        body["EndpointType"] = 1  # type: ignore[assignment]
    if version >= 2:
        body["IncludeFencedBrokers"] = wants_fenced
    response = make_bench(controller).ask("DescribeCluster", version, body)
    found = [
        (one["BrokerId"], one["Host"], one["Port"], one["Rack"], one.get("IsFenced", False))
        for one in response["Brokers"]
    ]
    live = [(1, "here", 9092, None, False), (2, "here", 9092, "b", False)]
    assert found == [*live, *[(3, "here", 9092, None, True)] * wants_fenced]
    assert (response["ErrorCode"], response["ControllerId"], response["ClusterId"]) == (0, 1, "cluster")
