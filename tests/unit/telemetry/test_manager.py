"""GetTelemetrySubscriptions and PushTelemetry of the client metrics manager: Kafka's limits, errors and metrics."""

from uuid import UUID

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.log.checkpoints import uuid_to_text
from kbroker.telemetry.instances import MIN_EXPIRY_MS, ClientInstance, InstanceCache
from kbroker.telemetry.manager import Granted
from kbroker.telemetry.subscriptions import Requested
from tests.support.errors import error_of
from tests.support.fixtures import fixture_of
from tests.support.telemetry import Rig

INTERVAL_MS = 300_000
SAME = UUID(int=7)
clock = fixture_of(VirtualClock)


@pytest.fixture
def rig(clock: VirtualClock) -> Rig:
    return Rig(clock)


def error_of_get(rig: Rig, uuid: UUID, **client: str) -> Errors:
    return error_of(rig.get, uuid, rig.client(**client))


def test_a_client_without_a_subscription(rig: Rig) -> None:
    """A client without a subscription gets an id, no metrics, and Kafka's maximum interval."""
    granted = rig.get()
    assert granted.requested == Requested([], INTERVAL_MS)
    assert granted.client_instance_id.int > 1
    assert not uuid_to_text(granted.client_instance_id).startswith("-")
    assert rig.get().client_instance_id != granted.client_instance_id
    assert len(rig.manager.instances) == 2


def test_a_second_get_before_the_interval_is_throttled(rig: Rig, clock: VirtualClock) -> None:
    """The client keeps its id; the interval counts from the last accepted request."""
    granted = rig.get(SAME)
    assert granted.client_instance_id == SAME
    clock.advance_ms(INTERVAL_MS - 1)
    assert error_of_get(rig, SAME) is Errors.THROTTLING_QUOTA_EXCEEDED
    assert rig.measured("throttle-count", uuid_to_text(SAME)) == 1
    clock.advance_ms(1)
    assert error_of_get(rig, SAME) is Errors.NONE
    clock.advance_ms(1000)
    rig.push(granted)
    clock.advance_ms(INTERVAL_MS - 1)
    assert error_of_get(rig, SAME) is Errors.THROTTLING_QUOTA_EXCEEDED


def test_a_changed_subscription_is_granted_at_once(rig: Rig) -> None:
    """A push with the former subscription id is refused, and the client may get the new subscription at once."""
    rig.configure("s", metrics="a.b", interval_ms="1000")
    first = rig.get(SAME)
    assert first.requested == Requested(["a.b"], 1000)
    rig.configure("s", metrics="a.b,c", interval_ms="500")
    assert rig.error_of(first) is Errors.UNKNOWN_SUBSCRIPTION_ID
    second = rig.get(SAME)
    assert sorted(second.requested.metrics) == ["a.b", "c"]
    assert second.requested.interval_ms == 500
    assert second.subscription_id != first.subscription_id
    rig.configure("s")
    assert rig.get(SAME).requested == Requested([], INTERVAL_MS)
    assert rig.measured("unknown-subscription-request-count") == 1


def test_a_subscription_that_is_absent_already_changes_nothing(rig: Rig) -> None:
    """Deleting an absent subscription does not end the interval of clients."""
    rig.get(SAME)
    rig.configure("other")
    assert error_of_get(rig, SAME) is Errors.THROTTLING_QUOTA_EXCEEDED


def test_a_get_after_an_error_of_the_subscription_is_not_throttled(rig: Rig) -> None:
    """The request after UNKNOWN_SUBSCRIPTION_ID is accepted before the interval."""
    granted = rig.get(SAME)
    wrong = granted._replace(subscription_id=granted.subscription_id + 1)
    assert rig.error_of(wrong) is Errors.UNKNOWN_SUBSCRIPTION_ID
    assert error_of_get(rig, SAME) is Errors.NONE
    assert error_of_get(rig, SAME) is Errors.THROTTLING_QUOTA_EXCEEDED  # the error applies to one request only


def test_unsupported_compression(rig: Rig) -> None:
    """Codecs 0 to 4 are accepted, including no compression, which the response does not list."""
    for codec in range(5):
        uuid = UUID(int=100 + codec)
        rig.push(rig.get(uuid), compression=codec)
    assert [push.compression for push in rig.pushes] == [0, 1, 2, 3, 4]
    for codec in (-1, 5, 127):
        granted = rig.get(UUID(int=200 + codec))
        assert rig.error_of(granted, compression=codec) is Errors.UNSUPPORTED_COMPRESSION_TYPE
        assert error_of_get(rig, granted.client_instance_id) is Errors.NONE


def test_the_interval_between_pushes(rig: Rig, clock: VirtualClock) -> None:
    """The first push after a get is accepted at once, the next push after the interval."""
    rig.configure("s", metrics="*", interval_ms="1000")
    granted = rig.get(SAME)
    clock.advance_ms(1)
    assert rig.error_of(granted) is Errors.NONE
    clock.advance_ms(999)
    assert rig.error_of(granted) is Errors.THROTTLING_QUOTA_EXCEEDED
    clock.advance_ms(1)
    assert rig.error_of(granted) is Errors.NONE
    assert len(rig.pushes) == 2


def test_the_last_push_is_accepted_early_and_is_the_last(rig: Rig, clock: VirtualClock) -> None:
    """A terminating client may push before its interval; its next push is refused."""
    granted = rig.get(SAME)
    rig.push(granted)
    assert rig.error_of(granted, terminating=True) is Errors.NONE
    assert rig.pushes[-1].is_terminating
    clock.advance_ms(INTERVAL_MS)
    assert rig.error_of(granted) is Errors.INVALID_REQUEST
    assert rig.error_of(granted) is Errors.NONE  # as in Kafka, a refused push updates the terminating flag


def test_data_that_is_too_large(clock: VirtualClock) -> None:
    """The limit applies to the compressed bytes."""
    rig = Rig(clock, max_bytes=10)
    assert rig.error_of(rig.get(SAME), bytes(10)) is Errors.NONE
    assert rig.error_of(rig.get(UUID(int=8)), bytes(11)) is Errors.TELEMETRY_TOO_LARGE


def test_an_empty_push_is_not_received(rig: Rig) -> None:
    """An empty push is accepted without decoding."""
    assert rig.error_of(rig.get(SAME), b"") is Errors.NONE
    assert rig.pushes == []


@pytest.mark.parametrize("number", [0, 1])
def test_reserved_ids_cannot_push(rig: Rig, number: int) -> None:
    """Reserved ids are refused, and no instance is created."""
    assert rig.error_of(Granted(UUID(int=number), 0, Requested([], 1))) is Errors.INVALID_REQUEST
    assert rig.manager.instances == []


def test_a_push_that_cannot_be_decoded(rig: Rig, clock: VirtualClock) -> None:
    """The push fails with INVALID_RECORD and is counted; the client continues after its interval."""
    granted = rig.get(SAME)
    rig.failure = ValueError("no OTLP")
    assert rig.error_of(granted) is Errors.INVALID_RECORD
    assert error_of_get(rig, SAME) is Errors.THROTTLING_QUOTA_EXCEEDED
    rig.failure = None
    clock.advance_ms(INTERVAL_MS)
    assert rig.error_of(granted) is Errors.NONE
    counts = [rig.measured(f"plugin-{name}-count", uuid_to_text(SAME)) for name in ("error", "export")]
    assert counts == [1, 1]


def test_a_push_of_an_unknown_instance(rig: Rig) -> None:
    """After a restart of the broker, the client's id is accepted, and so is an unchanged subscription id."""
    granted = rig.get(SAME)
    other = Rig(rig.clock)
    assert other.error_of(granted) is Errors.NONE
    assert [one.uuid for one in other.manager.instances] == [SAME]


def test_an_instance_expires(rig: Rig, clock: VirtualClock) -> None:
    """An instance expires after three intervals, at least a minute, without a request, and its sensors are removed."""
    rig.configure("s", metrics="*", interval_ms="1000")
    rig.get(SAME)
    assert rig.measured("instance-count") == 1
    clock.advance_ms(MIN_EXPIRY_MS - 1)
    rig.manager.sweep()
    assert len(rig.manager.instances) == 1
    rig.get(SAME)
    clock.advance_ms(MIN_EXPIRY_MS)
    rig.manager.sweep()
    assert rig.manager.instances == []
    assert [one.uuid for one in rig.removed] == [SAME]
    assert rig.measured("throttle-count", uuid_to_text(SAME)) is None
    assert rig.measured("instance-count") == 0
    rig.configure("s", metrics="*", interval_ms="100000")
    rig.get(SAME)
    clock.advance_ms(299_999)
    rig.manager.sweep()
    assert len(rig.manager.instances) == 1


def test_an_expired_instance_is_new_at_its_next_request(rig: Rig, clock: VirtualClock) -> None:
    """An expired instance is replaced without a sweep, even after a terminating push."""
    rig.configure("s", metrics="*", interval_ms="1000")
    granted = rig.get(SAME)
    rig.push(granted, terminating=True)
    clock.advance_ms(MIN_EXPIRY_MS)
    assert rig.error_of(granted) is Errors.NONE
    assert len(rig.removed) == 1


def test_the_end_of_a_connection_removes_its_instance(rig: Rig) -> None:
    """The instance ends with the connection on which it was created; a client that reconnects is not throttled."""
    rig.get(SAME, rig.client(connection="1"))
    rig.get(UUID(int=8), rig.client(connection="2"))
    rig.close("1")
    assert error_of_get(rig, SAME, connection="3") is Errors.NONE
    assert [one.uuid for one in rig.removed] == [SAME]
    rig.close("2")
    rig.manager.sweep()
    assert [one.uuid for one in rig.manager.instances] == [SAME]


def test_the_number_of_instances_is_bounded() -> None:
    """The least recently used instance is removed for a new instance."""
    removed: list[ClientInstance] = []
    cache = InstanceCache(removed.append, limit=2)
    for number in (1, 2):
        one = ClientInstance(UUID(int=number), {}, "", Requested([], 1), 0)
        one.touch(0)
        cache.put(one)
    assert cache.get(UUID(int=1), 1) is not None
    cache.put(ClientInstance(UUID(int=3), {}, "", Requested([], 1), 0))
    assert [one.uuid.int for one in removed] == [2]
    assert len(cache) == 2


def test_an_instance_that_is_removed_while_it_pushes_leaves_nothing(rig: Rig) -> None:
    """The series of a push are removed even if the instance is removed first."""
    granted = rig.get(SAME, rig.client(connection="1"))
    receive = rig.manager._receive

    def slow(push: object) -> None:
        receive(push)  # type: ignore[arg-type]
        rig.close("1")
        rig.manager.sweep()

    rig.manager._receive = slow
    rig.push(granted)
    assert [one.uuid for one in rig.removed] == [SAME, SAME]
