"""Fetch sessions (KIP-227) when the cache is full: which of them a new one evicts."""

from kbroker.testing import VirtualBroker
from tests.support.client import Client, fetch_body
from tests.support.fixtures import fixture_of

NOT_FOUND = 70
EVICTION_MS = 120_000  # min.incremental.fetch.session.eviction.ms of Kafka, which is not a config
broker = fixture_of(VirtualBroker, {"max.incremental.fetch.session.cache.slots": 2}, topics={"t": 4})


def opened(client: Client, partitions: int) -> int:
    """Return the id of a new session with this number of partitions, or 0 if the broker opened no session."""
    body = fetch_body("t")
    (row,) = body["Topics"][0]["Partitions"]
    body["Topics"][0]["Partitions"] = [{**row, "Partition": index} for index in range(partitions)]
    return int(client.call("Fetch", 12, {**body, "SessionId": 0, "SessionEpoch": 0})["SessionId"])


def used(client: Client, session: int, epoch: int) -> int:
    """Use a session and return its error code."""
    body = {**fetch_body("t"), "Topics": [], "SessionId": session, "SessionEpoch": epoch}
    return int(client.call("Fetch", 12, body)["ErrorCode"])


def test_sessions_in_use_stay(broker: VirtualBroker, client: Client) -> None:
    """A full cache opens no session for larger requests in the first two minutes."""
    sessions = [opened(client, 1), opened(client, 2)]
    broker.advance_ms(EVICTION_MS)
    assert opened(client, 4) == 0
    assert [used(client, session, 1) for session in sessions] == [0, 0]


def test_an_idle_session_is_evicted_first(broker: VirtualBroker, client: Client) -> None:
    """A session that was idle for more than two minutes is evicted by any new one, whatever its size."""
    idle, small = opened(client, 4), opened(client, 1)
    broker.advance_ms(EVICTION_MS)
    assert used(client, small, 1) == 0
    broker.advance_ms(1)
    assert opened(client, 1) > 0
    assert (used(client, idle, 1), used(client, small, 2)) == (NOT_FOUND, 0)


def test_a_larger_session_evicts_the_smallest(broker: VirtualBroker, client: Client) -> None:
    """The smallest of the sessions that were used two minutes after they began is evicted only by a larger one."""
    large, small = opened(client, 3), opened(client, 2)
    broker.advance_ms(EVICTION_MS)
    assert used(client, large, 1) == used(client, small, 1) == 0
    broker.advance_ms(EVICTION_MS)
    assert opened(client, 4) == 0, "the sessions were not used since"
    assert used(client, large, 2) == used(client, small, 2) == 0
    assert opened(client, 2) == 0, "the smallest is as large"
    assert opened(client, 3) > 0
    assert (used(client, small, 3), used(client, large, 3)) == (NOT_FOUND, 0)
