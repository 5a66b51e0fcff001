"""Share sessions: epochs, partitions, limits, and closed connections."""

from uuid import UUID

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.share.sessions import FINAL_EPOCH, SharedPartition, ShareSession, ShareSessionCache
from tests.support.errors import error_of
from tests.support.fixtures import fixture_of

P0, P1, P2 = (SharedPartition(UUID(int=1), index, "t") for index in range(3))


class Bench:
    def __init__(self, limit: int = 10) -> None:
        self.left: list[tuple[str, str]] = []
        self.empty: list[str] = []
        self.cache = ShareSessionCache(limit, self.leave, self.empty.append)

    def leave(self, session: ShareSession) -> None:
        self.left.append(session.key)

    def refused(self, member: str, epoch: int) -> Errors:
        return error_of(self.cache.advance, "g", member, epoch)


bench = fixture_of(Bench)


def test_epochs_rise_by_one(bench: Bench) -> None:
    assert bench.refused("m", 1) is Errors.SHARE_SESSION_NOT_FOUND
    session = bench.cache.open("g", "m", [P0], "c")
    assert bench.refused("m", 2) is Errors.INVALID_SHARE_SESSION_EPOCH
    assert bench.cache.advance("g", "m", 1) is session
    assert bench.cache.is_next(session, 1)
    assert bench.refused("m", 1) is Errors.INVALID_SHARE_SESSION_EPOCH
    session.epoch = 2**31 - 1
    bench.cache.advance("g", "m", 2**31 - 1)
    assert session.epoch == 1
    assert bench.cache.is_next(session, 2**31 - 1)
    bench.cache.advance("g", "m", FINAL_EPOCH)
    assert session.epoch == 1


def test_partitions_are_added_and_forgotten(bench: Bench) -> None:
    session = bench.cache.open("g", "m", [P0], "c")
    bench.cache.advance("g", "m", 1, [P0, P1], [])
    assert list(session.partitions.values()) == [P0, P1]
    assert bench.cache.partition_count == 2
    assert bench.cache.must_respond(session, P1.place, has_records=False, is_error=False)  # a new partition
    assert not bench.cache.must_respond(session, P1.place, has_records=False, is_error=False)
    assert bench.cache.must_respond(session, P0.place, has_records=True, is_error=False)
    assert list(session.partitions.values()) == [P1, P0]  # the partition with records is fetched last
    assert bench.cache.must_respond(session, P1.place, has_records=False, is_error=True)
    assert bench.cache.must_respond(session, P1.place, has_records=False, is_error=False)  # the error has ended
    bench.cache.advance("g", "m", 2, [], [P1.place, P2.place])
    assert list(session.partitions.values()) == [P0]
    bench.cache.advance("g", "m", 3, [], [P1.place])
    assert bench.cache.partition_count == 1


def test_a_new_session_replaces_the_former_one_at_the_limit() -> None:
    bench = Bench(1)
    bench.cache.open("g", "m", [P0], "c")
    bench.cache.open("g", "m", [P1], "d")
    assert error_of(bench.cache.open, "g", "n", [P1], "e") is Errors.SHARE_SESSION_LIMIT_REACHED
    bench.cache.disconnected("c")  # the connection of the former session
    assert (len(bench.cache), bench.left) == (1, [])


def test_a_closed_connection_ends_its_session_and_the_last_one_its_group(bench: Bench) -> None:
    bench.cache.open("g", "m", [P0], "c")
    bench.cache.open("g", "n", [P0], "d")
    bench.cache.disconnected("c")
    assert (bench.left, bench.empty, bench.cache.evictions) == ([("g", "m")], [], 1)
    assert bench.refused("m", 1) is Errors.SHARE_SESSION_NOT_FOUND
    bench.cache.remove("g", "n")
    bench.cache.disconnected("d")
    assert (bench.left, bench.empty) == ([("g", "m")], ["g"])
    bench.cache.disconnected("d")
    assert bench.cache.evictions == 1


def test_a_member_that_is_back_before_its_closed_connection_is_handled_keeps_its_new_session(bench: Bench) -> None:
    cache = ShareSessionCache(10, lambda session: cache.open(*session.key, [P0], "d"), bench.empty.append)
    cache.open("g", "m", [P0], "c")
    cache.disconnected("c")  # the member returns while its records are released
    assert cache.advance("g", "m", 1).connection_id == "d"
    assert bench.empty == []


def test_a_closed_connection_ends_all_of_its_sessions(bench: Bench) -> None:
    for group, member in (("g", "m"), ("g", "n"), ("h", "m")):
        bench.cache.open(group, member, [P0], "c")
    bench.cache.disconnected("c")
    assert (len(bench.cache), sorted(bench.left)) == (0, [("g", "m"), ("g", "n"), ("h", "m")])
    assert sorted(bench.empty) == ["g", "h"]


def test_a_connection_that_opens_and_ends_sessions_takes_no_more_memory(bench: Bench) -> None:
    for number in range(1000):
        bench.cache.open(f"g{number}", "m", [P0], "c")
        bench.cache.remove(f"g{number}", "m")
    assert len(bench.empty) > 900
    bench.cache.disconnected("c")
    assert sorted(bench.empty) == sorted(f"g{number}" for number in range(1000))


def test_the_partitions_of_all_sessions_are_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that would exceed the limit is neither opened nor extended; closed sessions free capacity."""
    monkeypatch.setattr("kbroker.share.sessions.MAX_PARTITIONS", 3)
    cache = bench.cache
    cache.open("g", "a", [P0, P1, P1], "c")
    with pytest.raises(KafkaError):
        cache.open("g", "b", [P0, P1], "d")
    session = cache.open("g", "b", [P0], "d")
    with pytest.raises(KafkaError):
        cache.advance("g", "b", 1, [P0, P1])
    assert (list(session.partitions), session.epoch, cache.partition_count) == ([P0.place], 1, 3)
    cache.advance("g", "a", 1, [], [P1.place, P2.place])
    assert cache.partition_count == 2
    cache.advance("g", "b", 1, [P0, P1])
    cache.open("g", "a", [P2], "c")
    cache.disconnected("d")
    assert (len(cache), cache.partition_count) == (1, 1)
