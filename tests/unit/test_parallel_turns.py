"""The turns that the workers of one test run take."""

from collections.abc import Iterator
from pathlib import Path

import pytest

fcntl = pytest.importorskip("fcntl")

from tests.support.parallel import Turns  # noqa: E402


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Turns]]:
    turns = [Turns(tmp_path), Turns(tmp_path)]
    yield turns
    for one in turns:
        one.close()


def is_free(tmp_path: Path, kind: int) -> bool:
    """Whether somebody else could take the room now."""
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
