"""The image of a member is that of the committed records after any events in the quorum, the node and its disk."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import metadata_images as rows
from tests.support.fake_quorum import FakeQuorum
from tests.support.metadata_images import Row
from tests.support.raft_follower import RaftFollower

EVENTS = st.lists(
    st.one_of(
        st.sampled_from(
            ["append", "append", "commit", "elect", "transaction", "abort", "snapshot", "drive", "restart"]
        ),
        st.sampled_from(["cut", "fetch", "own-snapshot"]),
        st.tuples(st.just("damage"), st.integers(0, 1 << 30)),
    ),
    max_size=30,
)


class Story:
    """Quorum and follower with their events. No two topics have the same name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quorum = FakeQuorum()
        self.quorum.append(rows.feature("metadata.version", 30))
        self.quorum.commit()
        self.numbers = iter(range(1, 1000))

    def topic(self) -> tuple[Row, Row]:
        number = next(self.numbers)
        return rows.topic(f"t{number}", number), rows.partition(number)

    def happen(self, event: str | tuple[str, int], follower: RaftFollower) -> None:
        """Cause an event that does not end the follower."""
        quorum = self.quorum
        if event == "append":
            quorum.append(*self.topic())
        elif event == "commit":
            quorum.commit()
        elif event == "elect":
            quorum.elect(3 - quorum.leader_id)
        elif event == "transaction":
            quorum.append(("BeginTransaction", {"Name": None}), *self.topic())
            quorum.append(*self.topic(), ("EndTransaction", {}))
            quorum.commit()
        elif event == "abort":
            quorum.append(("BeginTransaction", {"Name": None}), *self.topic())
            quorum.append(("AbortTransaction", {"Reason": None}))
            quorum.commit()
        elif event == "snapshot" and quorum.high_watermark > quorum.start_offset:
            quorum.take_snapshot()
        elif event == "drive":
            follower.drive()
        elif event == "fetch":
            follower.drive(1)
        elif event == "own-snapshot":
            image = follower.metadata.image
            if image.offset >= 0:
                from kbroker.metadata.image.snapshot_records import records_of

                follower.log.write_snapshot(records_of(image, 30), image.offset, image.epoch, 1)
        elif event == "cut":
            quorum.unreachable ^= {quorum.addresses[1 + next(self.numbers) % 2]}

    def damage(self, at: int) -> None:
        """Change a byte of a file of the log."""
        files = sorted(path for path in self.folder.rglob("*-0/*.log") if path.stat().st_size)
        files += sorted(self.folder.rglob("*.checkpoint"))
        if files:
            path = files[at % len(files)]
            data = bytearray(path.read_bytes())
            data[at % len(data)] ^= 1 << at % 8
            path.write_bytes(data)


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_the_image_is_that_of_the_committed_records(events: list[str | tuple[str, int]]) -> None:
    """The image is correct after elections, lost records, snapshots, unreachable controllers, restarts and damage."""
    with tempfile.TemporaryDirectory() as name:
        story = Story(Path(name))
        at = 0
        while True:
            with RaftFollower(story.folder, story.quorum) as follower:
                while at < len(events) and events[at] != "restart" and isinstance(events[at], str):
                    story.happen(events[at], follower)
                    at += 1
                if at == len(events):
                    story.quorum.unreachable.clear()
                    assert follower.catch_up() == story.quorum.image()
                    assert not follower.faults
                    return
            event = events[at]
            at += 1
            if not isinstance(event, str):
                story.damage(event[1])
