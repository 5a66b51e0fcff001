"""Image changes that concern this broker: registrations, levels that allow cordons, and replicas."""

import logging
from uuid import UUID

import pytest

from kbroker.member.lifecycle import BROKER_REGISTRATION
from kbroker.member.registration_tracker import RegistrationTracker
from kbroker.metadata.image.image import MetadataImage
from tests.support import metadata_images as rows
from tests.support.metadata_images import Row
from tests.unit.member.test_lifecycle import Life

DIRECTORY = UUID(int=1 << 100)


@pytest.fixture
def life() -> Life:
    found = Life()
    found.run()
    return found


def publish(life: Life, before: MetadataImage, *changes: Row) -> MetadataImage:
    """Publish changes to the tracker of broker 9, which is ready, and return the image after them."""
    tracker = RegistrationTracker(9, life.cycle, lambda: True)
    delta = rows.delta_of(before, *changes)
    image = delta.apply(before.offset + 1, 1)
    assert tracker.concerns(delta)
    tracker.publish(delta, image)
    life.tasks.run_due()
    return image


def test_a_registration_without_directories(life: Life) -> None:
    """A broker registered at a level without directories registers again when the level has them."""
    old = rows.after(rows.feature("metadata.version", 15), rows.broker(9, BrokerEpoch=77))
    publish(life, old, rows.feature("metadata.version", 30))
    assert life.request()[0] == BROKER_REGISTRATION


def test_a_complete_registration(life: Life) -> None:
    publish(
        life, rows.after(), rows.broker(9, BrokerEpoch=77, LogDirs=[DIRECTORY]), rows.feature("metadata.version", 26)
    )
    assert not life.channel.sent


def test_a_registration_of_another_run(life: Life) -> None:
    publish(life, rows.after(), rows.broker(9, BrokerEpoch=70), rows.feature("metadata.version", 26))
    assert not life.channel.sent


def test_a_level_that_allows_cordons(life: Life) -> None:
    """A broker that was fenced because of the level requests to be unfenced."""
    life.cycle.fence()
    life.tasks.run_due()
    life.respond(IsFenced=True)
    publish(life, rows.after(rows.feature("metadata.version", 29)), rows.feature("metadata.version", 30))
    assert life.request()[1]["WantFence"] is False


def test_replicas_on_this_broker_are_reported_once(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "kbroker")
    image = publish(life, rows.after(), rows.topic("a", 1), rows.partition(1), rows.partition(1, 1))
    assert not caplog.messages
    image = publish(life, image, rows.change(1, 0, Replicas=[1, 9], Directories=[DIRECTORY] * 2))
    (message,) = caplog.messages
    assert message.startswith("1 partition with a replica on this broker: a-0; offline here: this broker does not host")
    publish(life, image, rows.change(1, 0, Isr=[1]))
    assert len(caplog.messages) == 1
