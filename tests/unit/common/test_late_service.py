"""Services that start late: one start for all users, none for a close, and no lock once they have started."""

import threading

import pytest

from kbroker.common.late_service import LateService


def test_all_users_share_one_start() -> None:
    """Users that request the service during a start get the same one; before the first request nothing is started."""
    asked, starts, found = threading.Semaphore(0), [], []

    def start() -> object:
        starts.append(all(asked.acquire(timeout=1) for _ in range(4)))
        return object()

    late = LateService(start)
    assert late.started is None

    def use() -> None:
        asked.release()
        found.append(late.get())

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert starts == [True]
    assert found == [late.started] * 4


def test_a_failed_start_is_repeated() -> None:
    """The error of a start is that of its user; the next user starts the service again."""
    answers = iter([1, 0])
    late = LateService(lambda: 1 // (1 - next(answers)))
    with pytest.raises(ZeroDivisionError):
        late.get()
    assert late.started is None
    assert late.get() == 1


def test_a_close_gets_what_has_started() -> None:
    """A service that has not started is not closed; one that closes can still be used."""
    late = LateService(lambda: "service")
    closed: list[str] = []
    late.close(closed.append)
    assert closed == []
    late.get()
    late.close(lambda service: closed.append(late.get()))
    assert closed == ["service"]
