"""Producer ids of a member: blocks from the controller, and requests without a block."""

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.member.producer_ids import ALLOCATE_PRODUCER_IDS, RemoteProducerIds
from kbroker.protocol import codec
from tests.support.errors import error_of
from tests.support.member import FakeChannel


def make() -> tuple[RemoteProducerIds, FakeChannel]:
    channel = FakeChannel()
    return RemoteProducerIds(9, lambda: 77, channel), channel  # type: ignore[arg-type]


def give(channel: FakeChannel, start: int, count: int) -> None:
    channel.respond({"ErrorCode": 0, "ProducerIdStart": start, "ProducerIdLen": count})


def test_the_first_producer_tries_again() -> None:
    """Requests without a block get COORDINATOR_LOAD_IN_PROGRESS, and cause one request for a block."""
    ids, channel = make()
    for _ in range(2):
        assert error_of(ids.next) is Errors.COORDINATOR_LOAD_IN_PROGRESS
    ((key, body, _),) = channel.sent
    assert (key, body) == (ALLOCATE_PRODUCER_IDS, {"BrokerId": 9, "BrokerEpoch": 77})
    assert codec.encode_request(key, 0, body)
    give(channel, 5000, 1000)
    assert [ids.next(), ids.next()] == [5000, 5001]
    assert channel.sent == []


def test_the_next_block_comes_before_the_end_of_the_current_one() -> None:
    ids, channel = make()
    with pytest.raises(KafkaError):
        ids.next()
    give(channel, 0, 10)
    assert [ids.next() for _ in range(9)] == list(range(9))
    assert channel.sent == []
    assert ids.next() == 9
    give(channel, 40, 10)
    assert [ids.next() for _ in range(3)] == [40, 41, 42]


@pytest.mark.parametrize("is_sent", [True, False])
def test_after_an_error_the_next_producer_requests_a_block(is_sent: bool) -> None:
    """A block is requested again after an error of the controller and after a timeout."""
    ids, channel = make()
    for _ in range(2):
        with pytest.raises(KafkaError):
            ids.next()
        assert len(channel.sent) == 1
        if is_sent:
            channel.respond({"ErrorCode": int(Errors.STALE_BROKER_EPOCH)})
        else:
            channel.fail(Errors.REQUEST_TIMED_OUT)
