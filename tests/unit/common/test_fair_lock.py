"""A lock whose owner cannot hold up others by taking it again at once."""

import threading

from kbroker.common.fair_lock import FairLock
from kbroker.testing.waiting import wait_until


def test_a_waiting_thread_is_next() -> None:
    """A thread that takes the lock again does so after the thread that was waiting."""
    lock, order = FairLock(), []

    def wait() -> None:
        with lock:
            order.append("waited")

    for number in range(50):
        with lock:
            thread = threading.Thread(target=wait)
            thread.start()
            wait_until(lock._next.locked)
            order.append("first")
        with lock:
            order.append("second")
        thread.join(10)
        assert order[3 * number :] == ["first", "waited", "second"]


def test_it_is_reentrant() -> None:
    """The owner takes the lock again although another thread waits for it, and the last exit releases it."""
    lock, taken = FairLock(), threading.Event()

    def wait() -> None:
        with lock:
            taken.set()

    with lock:
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lock._next.locked)
        with lock:
            pass
        assert not taken.is_set()
    assert taken.wait(10)
    thread.join(10)


def test_it_excludes() -> None:
    """Threads that count in turns lose no number, even after an error."""
    lock, total = FairLock(), 0

    def count() -> None:
        nonlocal total
        for _ in range(2000):
            try:
                with lock, lock:
                    before = total
                    total = before + 1
                    raise ValueError
            except ValueError:
                pass

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert total == 8000
