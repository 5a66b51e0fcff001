"""Order, capacity, waits and close of the request queue."""

import threading

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.requests.request_queue import Queue
from kbroker.testing.waiting import wait_until
from tests.native.echo import put_batch, take_batch


def test_runs_keep_their_order_and_frames() -> None:
    """Request batches are taken in their order, each complete."""
    queue = Queue(10)
    assert put_batch(queue, [b"a", b"b"])
    assert put_batch(queue, [b"c"])
    assert len(queue) == 3
    assert take_batch(queue, 0) == [b"a", b"b"]
    assert take_batch(queue, 0) == [b"c"]
    assert take_batch(queue, 0) is None
    assert len(queue) == 0


def test_each_frame_of_a_run_counts() -> None:
    """A batch that does not fit waits until enough frames have been taken."""
    queue = Queue(3)
    put_batch(queue, [b"a", b"b"])
    done: list[bool] = []
    putter = threading.Thread(target=lambda: done.append(put_batch(queue, [b"c", b"d"])))
    putter.start()
    wait_until(lambda: queue.put_blocked_ns == 0 and len(queue) == 2, what="the wait of the putter")
    assert not done
    assert take_batch(queue, 0) == [b"a", b"b"]
    putter.join(10)
    assert done == [True]
    assert take_batch(queue, 0) == [b"c", b"d"]


def test_longer_run_than_the_queue_enters_an_empty_one() -> None:
    """A batch above the capacity enters an empty queue."""
    queue = Queue(1)
    assert put_batch(queue, [b"a", b"b", b"c"])
    assert queue.is_nearly_full
    assert take_batch(queue, 0) == [b"a", b"b", b"c"]
    assert not queue.is_nearly_full


def test_nearly_full_above_three_quarters() -> None:
    """Three of four is not nearly full, four of four is."""
    queue = Queue(4)
    seen = []
    for payload in (b"a", b"b", b"c", b"d"):
        put_batch(queue, [payload])
        seen.append(queue.is_nearly_full)
    assert seen == [False, False, False, True]
    queue.refuse_all()


def test_take_waits_without_the_gil_until_a_put() -> None:
    """One put wakes a waiting taker."""
    queue = Queue(4)
    got: list[list[bytes] | None] = []
    taker = threading.Thread(target=lambda: got.append(take_batch(queue, -1)))
    taker.start()
    put_batch(queue, [b"x"])
    taker.join(10)
    assert got == [[b"x"]]


def test_time_out_follows_the_virtual_clock() -> None:
    """A take times out when the injected clock reaches its deadline, and not before."""
    clock = VirtualClock()
    queue = Queue(4, clock)
    got: list[list[bytes] | None] = []
    taker = threading.Thread(target=lambda: got.append(take_batch(queue, 300_000_000)))
    taker.start()
    for _ in range(2000):
        if not taker.is_alive():
            break
        clock.advance_ms(100)
        taker.join(0.005)
    assert got == [None]
    assert queue.idle_ns >= 300_000_000


def test_close_wakes_everybody_and_keeps_what_is_queued() -> None:
    """After a close no batch is added, queued batches can be taken, and then takes return at once."""
    queue = Queue(1)
    put_batch(queue, [b"a"])
    results: list[object] = []
    putter = threading.Thread(target=lambda: results.append(put_batch(queue, [b"b"])))
    putter.start()
    wait_until(lambda: len(queue) == 1, what="the wait of the putter")
    queue.close()
    putter.join(10)
    assert results == [False]
    assert queue.closed
    assert not put_batch(queue, [b"c"])
    assert take_batch(queue, -1) == [b"a"]
    assert take_batch(queue, -1) is None


def test_wrong_arguments() -> None:
    """A capacity below one and an object that is not a clock are rejected."""
    with pytest.raises(ValueError, match="capacity"):
        Queue(0)
    with pytest.raises(TypeError):
        Queue(1, "now")  # type: ignore[arg-type]
