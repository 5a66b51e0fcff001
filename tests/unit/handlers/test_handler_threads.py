"""Number of handler threads, changed while they run."""

import threading

from kbroker.handlers.handler_threads import HandlerThreads


def test_resize() -> None:
    """New threads start at once, surplus threads are retired, and each thread has a new name."""
    leave = threading.Semaphore(0)
    ended = threading.Semaphore(0)
    asked: list[int] = []

    def body() -> None:
        leave.acquire()
        ended.release()

    def retire(count: int) -> None:
        asked.append(count)
        leave.release(count)

    pool = HandlerThreads(body, retire)
    pool.resize(2)
    pool.resize(4)
    threads = pool.threads
    assert [thread.name for thread in threads] == [f"data-plane-kafka-request-handler-{n}" for n in range(4)]
    pool.resize(1)
    assert asked == [3]
    assert all(ended.acquire(timeout=5) for _ in range(3))
    pool.resize(1)
    assert asked == [3]
    pool.resize(2)
    (new,) = set(pool.threads) - set(threads)
    assert new.name == "data-plane-kafka-request-handler-4"
    leave.release(2)
    for thread in [*threads, new]:
        thread.join(5)
    assert pool.threads == []
