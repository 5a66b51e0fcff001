"""Registration and heartbeats of a broker: requests, their times, and effects of responses.

Source: ``BrokerLifecycleManager``.
"""

from typing import Any
from uuid import UUID

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.common.listeners import Listener
from kbroker.log.scheduler import Scheduler
from kbroker.member.lifecycle import (
    BROKER_HEARTBEAT,
    BROKER_REGISTRATION,
    BrokerLifecycle,
    BrokerState,
    LifecycleTimes,
    Registration,
)
from tests.support.errors import raising
from tests.support.fixtures import fixture_of
from tests.support.member import FakeChannel

A, B = UUID(int=1), UUID(int=(1 << 127) + 2)
REGISTRATION = Registration(
    9, "c", [Listener("PLAIN", "PLAINTEXT", "h", 9092), Listener("TLS", "SASL_SSL", "h", 9093)],
    {"metadata.version": (7, 30)}, "r1", [A, B], 558,
)  # fmt: skip


class Life:
    """Life cycle whose controller is the test."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.tasks = Scheduler(self.clock)
        self.channel = FakeChannel()
        self.offset = 10
        self.failures: list[str] = []
        self.cordoned: list[UUID] | None = [A, B]
        self.cycle = BrokerLifecycle(
            LifecycleTimes(2000, 60_000, 30_000), self.clock, self.tasks, self.channel.send, lambda: self.offset,
            self.failures.append,
        )  # fmt: skip

    def advance(self, ms: int) -> None:
        self.clock.advance_ms(ms)
        self.tasks.run_due()

    def start(self) -> None:
        self.cycle.start(REGISTRATION, lambda: self.cordoned)
        self.tasks.run_due()

    def request(self) -> tuple[int, dict[str, Any]]:
        """Return the key and body of the only request in flight."""
        ((key, body, _),) = self.channel.sent
        return key, body

    def respond(self, **body: object) -> None:
        fields = {"ErrorCode": 0, "IsCaughtUp": True, "IsFenced": False, "ShouldShutDown": False, "BrokerEpoch": 77}
        self.channel.respond({**fields, **body})
        self.tasks.run_due()

    def run(self) -> None:
        """Bring the broker to RUNNING, with the next heartbeat in two seconds."""
        self.start()
        self.respond()
        self.respond(IsFenced=True)
        self.cycle.set_ready_to_unfence()
        self.tasks.run_due()
        self.respond()
        assert self.cycle.state is BrokerState.RUNNING


life = fixture_of(Life)


def test_registration(life: Life) -> None:
    """The request has all fields; directories are in the order of Java's Uuid, whose upper half is signed."""
    life.start()
    key, body = life.request()
    assert key == BROKER_REGISTRATION
    assert body["LogDirs"] == [B, A]
    assert body["Listeners"] == [
        {"Name": "PLAIN", "Host": "h", "Port": 9092, "SecurityProtocol": 0},
        {"Name": "TLS", "Host": "h", "Port": 9093, "SecurityProtocol": 3},
    ]
    assert body["Features"] == [{"Name": "metadata.version", "MinSupportedVersion": 7, "MaxSupportedVersion": 30}]
    assert (body["BrokerId"], body["ClusterId"], body["Rack"], body["PreviousBrokerEpoch"]) == (9, "c", "r1", 558)
    assert body["IncarnationId"] == life.cycle.incarnation_id != Life().cycle.incarnation_id


@pytest.mark.parametrize("step", ["_heartbeat", "_take"])
def test_a_request_without_memory_is_followed_by_another(
    life: Life, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A heartbeat that fails for lack of memory is repeated, or the controller would fence the broker for good."""
    life.run()
    with monkeypatch.context() as patch:
        patch.setattr(life.cycle, step, raising(MemoryError))
        life.advance(2000)
        if step == "_take":
            with pytest.raises(MemoryError):
                life.respond()
    assert not life.channel.sent
    life.advance(2000)
    assert life.request()[0] == BROKER_HEARTBEAT
    life.respond()
    assert life.cycle.state is BrokerState.RUNNING


def test_starting(life: Life) -> None:
    """A heartbeat follows the registration at once, and then every 10 ms until the broker has caught up."""
    life.start()
    life.respond()
    assert life.cycle.broker_epoch == 77
    key, body = life.request()
    assert key == BROKER_HEARTBEAT
    assert body == {
        "BrokerId": 9, "BrokerEpoch": 77, "CurrentMetadataOffset": 10, "WantFence": True, "WantShutDown": False,
        "OfflineLogDirs": [],
    }  # fmt: skip
    life.respond(IsCaughtUp=False, IsFenced=True)
    assert not life.channel.sent
    life.offset = 11
    life.advance(10)
    assert life.request()[1]["CurrentMetadataOffset"] == 11
    assert not life.cycle.caught_up.is_set()
    life.respond(IsFenced=True)
    assert life.cycle.caught_up.is_set()
    assert life.cycle.state is BrokerState.RECOVERY


def test_cordoned_directories_after_the_first_catch_up(life: Life) -> None:
    life.start()
    life.respond()
    assert "CordonedLogDirs" not in life.request()[1]
    life.respond(IsFenced=True)
    life.advance(10)
    assert life.request()[1]["CordonedLogDirs"] == [A, B]
    life.respond(IsFenced=True)
    life.cordoned = None
    life.advance(2000)
    assert "CordonedLogDirs" not in life.request()[1]


def test_unfenced(life: Life) -> None:
    """The broker is unfenced when it is ready, and then sends a heartbeat two seconds after each response."""
    life.start()
    life.respond()
    life.respond(IsFenced=True)
    life.advance(10)
    life.respond(IsFenced=True)
    assert life.cycle.state is BrokerState.RECOVERY
    life.cycle.set_ready_to_unfence()
    life.tasks.run_due()
    assert life.request()[1]["WantFence"] is False
    life.respond()
    assert life.cycle.unfenced.is_set()
    assert not life.cycle.is_fenced
    life.advance(1999)
    assert not life.channel.sent
    life.advance(1)
    assert life.channel.sent
    life.advance(10_000)
    assert len(life.channel.sent) == 1  # at most one request is in flight
    life.respond()
    life.advance(2000)
    assert len(life.channel.sent) == 1


def test_a_change_during_a_heartbeat_follows_at_once(life: Life) -> None:
    life.start()
    life.respond()
    life.cycle.set_ready_to_unfence()
    life.tasks.run_due()
    assert life.request()[1]["WantFence"] is True
    life.respond()
    assert life.request()[1]["WantFence"] is False


def test_registration_is_repeated(life: Life) -> None:
    """DUPLICATE_BROKER_REGISTRATION, as after a quick restart, is retried every two seconds and explained."""
    life.start()
    for _ in range(3):
        life.respond(ErrorCode=int(Errors.DUPLICATE_BROKER_REGISTRATION))
        assert "another broker with this node.id is registered and alive" in life.cycle.last_error
        life.advance(1999)
        assert not life.channel.sent
        life.advance(1)
    assert life.request()[0] == BROKER_REGISTRATION
    life.respond()
    assert life.cycle.last_error == ""
    assert life.request()[0] == BROKER_HEARTBEAT


def test_registration_gives_up(life: Life) -> None:
    """A second process with the node id ends with an error after initial.broker.registration.timeout.ms."""
    life.start()
    life.respond(ErrorCode=int(Errors.DUPLICATE_BROKER_REGISTRATION))
    life.advance(59_999)
    assert not life.cycle.ended.is_set()
    life.advance(1)
    assert life.cycle.ended.is_set()
    assert life.cycle.failure == (
        "unable to register with the controller quorum within 60000 ms (initial.broker.registration.timeout.ms): "
        "DUPLICATE_BROKER_REGISTRATION: another broker with this node.id is registered and alive; after a restart its "
        "session ends within broker.session.timeout.ms of the controller"
    )


def test_a_registered_broker_does_not_give_up(life: Life) -> None:
    """The broker keeps running without a controller, and the last error has the reason."""
    life.run()
    for _ in range(40):
        life.advance(2000)
        life.channel.fail(Errors.REQUEST_TIMED_OUT)
        life.tasks.run_due()
    assert life.cycle.state is BrokerState.RUNNING
    assert "REQUEST_TIMED_OUT" in life.cycle.last_error


def test_a_stale_epoch_does_not_register_again(life: Life) -> None:
    """The broker does not register again, as in Kafka, because another process owns the registration."""
    life.run()
    life.advance(2000)
    life.respond(ErrorCode=int(Errors.STALE_BROKER_EPOCH))
    assert "another process has registered with this node.id" in life.cycle.last_error
    life.advance(2000)
    assert life.request()[0] == BROKER_HEARTBEAT


def test_fenced_and_back(life: Life) -> None:
    """A broker fenced after a pause is unfenced by its next heartbeat, and its state stays RUNNING."""
    life.run()
    life.advance(2000)
    life.respond(IsFenced=True)
    assert (life.cycle.is_fenced, life.cycle.state) == (True, BrokerState.RUNNING)
    life.advance(2000)
    life.respond()
    assert not life.cycle.is_fenced
    life.cycle.fence()
    life.tasks.run_due()
    assert life.request()[1]["WantFence"] is True


def test_controlled_shutdown(life: Life) -> None:
    """Heartbeats are sent at once, after 50 ms, and then every two seconds until the controller agrees."""
    life.run()
    life.cycle.begin_controlled_shutdown()
    life.tasks.run_due()
    body = life.request()[1]
    assert (body["WantShutDown"], body["WantFence"]) == (True, False)
    life.respond()
    life.advance(50)
    life.respond()
    life.advance(1999)
    assert not life.channel.sent
    life.advance(1)
    assert not life.cycle.ended.is_set()
    life.respond(ShouldShutDown=True)
    assert life.cycle.ended.is_set()
    assert life.cycle.state is BrokerState.SHUTTING_DOWN
    life.advance(10_000)
    assert not life.channel.sent


def test_a_stop_before_the_broker_runs(life: Life) -> None:
    life.start()
    life.cycle.begin_controlled_shutdown()
    assert life.cycle.ended.is_set()
    life.respond()
    assert not life.channel.sent


def test_a_failed_directory_is_reported_at_once_and_always(life: Life) -> None:
    life.run()
    life.cycle.report_failed_directory(A)
    life.tasks.run_due()
    assert life.request()[1]["OfflineLogDirs"] == [A]
    life.respond()
    life.advance(2000)
    assert life.request()[1]["OfflineLogDirs"] == [A]
    life.respond()
    life.advance(30_000)
    assert life.failures == []


def test_a_failed_directory_that_cannot_be_reported_ends_the_broker(life: Life) -> None:
    life.run()
    life.cycle.report_failed_directory(A)
    life.tasks.run_due()
    life.advance(30_000)
    assert life.failures == [f"cannot report the failed log directory {A} to a controller in time"]


def test_register_again(life: Life) -> None:
    """The registration has the same incarnation id, so that the controller amends it."""
    life.run()
    life.cycle.register_again()
    life.tasks.run_due()
    key, body = life.request()
    assert (key, body["IncarnationId"]) == (BROKER_REGISTRATION, life.cycle.incarnation_id)
    life.respond(BrokerEpoch=77)
    assert life.request()[0] == BROKER_HEARTBEAT
