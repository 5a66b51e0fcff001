"""Workers of one test run: their turns, and the tests of a worker that ends."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

fcntl = pytest.importorskip("fcntl")

from tests.support.parallel import Groups, Turns  # noqa: E402


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Turns]]:
    turns = [Turns(tmp_path), Turns(tmp_path)]
    yield turns
    for one in turns:
        one.close()


def is_free(tmp_path: Path, kind: int) -> bool:
    """Return whether another process could take the slot now."""
    with (tmp_path / "turns.room").open("w") as other:
        try:
            fcntl.flock(other, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_ordinary_tests_run_beside_each_other(pair: list[Turns], tmp_path: Path) -> None:
    pair[0].enter(alone=False)
    pair[1].enter(alone=False)
    assert not is_free(tmp_path, fcntl.LOCK_EX)
    pair[0].end(stay=False)
    assert not is_free(tmp_path, fcntl.LOCK_EX)
    pair[1].end(stay=False)
    assert is_free(tmp_path, fcntl.LOCK_EX)


def test_one_that_is_alone_shuts_the_others_out_until_the_last_of_its_kind(pair: list[Turns], tmp_path: Path) -> None:
    pair[0].enter(alone=True)
    assert not is_free(tmp_path, fcntl.LOCK_SH)
    pair[0].end(stay=True)
    assert not is_free(tmp_path, fcntl.LOCK_SH)
    pair[0].enter(alone=True)
    pair[0].end(stay=False)
    assert is_free(tmp_path, fcntl.LOCK_EX)


def test_an_ordinary_test_after_one_alone_lets_others_in(pair: list[Turns], tmp_path: Path) -> None:
    pair[0].enter(alone=True)
    pair[0].end(stay=True)
    pair[0].enter(alone=False)
    assert is_free(tmp_path, fcntl.LOCK_SH)
    assert not is_free(tmp_path, fcntl.LOCK_EX)


def test_the_first_test_lets_one_go_first_that_is_to_be_alone(pair: list[Turns], tmp_path: Path) -> None:
    """The first test gives way once, and not without limit."""
    order: list[str] = []

    def enter_ordinarily() -> None:
        pair[1].enter(alone=False)
        order.append("ordinary")

    pair[1].alone_first_s = 60
    other = threading.Thread(target=enter_ordinarily)
    other.start()
    pair[0].enter(alone=True)
    order.append("alone")
    pair[0].end(stay=False)
    other.join(60)
    assert order == ["alone", "ordinary"]
    assert pair[1].alone_first_s == 0
    (tmp_path / "turns.begun").unlink()
    pair[0].alone_first_s = 0.1
    pair[0].enter(alone=False)
    assert not is_free(tmp_path, fcntl.LOCK_EX)


class Worker:
    """Worker that records the tests assigned to it."""

    def __init__(self, groups: Groups, tests: list[str]) -> None:
        self._tests = tests
        self.given: list[str] = []
        self.gateway = SimpleNamespace(id="gw")
        self.shutting_down = False
        groups.add_node(self)
        groups.add_node_collection(self, tests)

    def send_runtest_some(self, indexes: list[int]) -> None:
        assert indexes, "a worker that gets no test never requests another"
        self.given += [self._tests[index] for index in indexes]

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.mark.parametrize(("done", "given"), [(0, ["b::2", "d::1"]), (1, ["d::1"]), (2, [])])
def test_a_test_in_which_a_worker_ends_is_not_repeated(done: int, given: list[str]) -> None:
    """The test fails by name, and another worker runs the tests after it but no completed group."""
    tests = ["a::1", "b::1", "b::2", "c::1", "d::1"]
    options = SimpleNamespace(getvalue=lambda name: ["2*popen"], option=SimpleNamespace(loadscopereorder=False))
    groups = Groups(options)
    _, ended = Worker(groups, tests), Worker(groups, tests)
    groups.schedule()
    assert ended.given == [name for name in tests if name[0] in "bd"]
    for index in range(1, 1 + done):
        groups.mark_test_complete(ended, index)
    assert groups.remove_node(ended) == ended.given[done]
    new = Worker(groups, tests)
    groups.schedule()
    for name in given:
        groups.mark_test_complete(new, tests.index(name))
    assert new.given == given
