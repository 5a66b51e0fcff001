"""Vectors SL-1 to SL-15 (SelectorTest) and P6, on the native loop and on the portable loop."""

import contextlib
import selectors
import socket
import struct
from collections.abc import Callable

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.network.selector import IllegalStateError, Selector
from kbroker._core.requests.memory_pool import MemoryPool
from tests.support.closing import close_at_end
from tests.support.socket_rig import selectors2_selector

BACKENDS: dict[str, Callable[[], object]] = {
    "native": lambda: "auto",
    "selectors": selectors.DefaultSelector,
    "selectors2": selectors2_selector,
}
IDLE_MS = 5000


class Bench:
    """Selector with clients at the other ends of its sockets."""

    def __init__(self, backend: object, **options: object) -> None:
        self.clock = VirtualClock()
        self.selector = Selector(clock=self.clock, idle_ms=IDLE_MS, backend=backend, **options)  # type: ignore[arg-type]
        self.clients: dict[str, socket.socket] = {}

    def connect(self, name: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.selector.register(theirs, name)
        self.clients[name] = ours
        ours.settimeout(10)
        return ours

    def request(self, name: str, payload: bytes) -> None:
        self.clients[name].sendall(struct.pack(">i", len(payload)) + payload)

    def response(self, name: str) -> bytes:
        (size,) = struct.unpack(">i", self.exactly(name, 4))
        return self.exactly(name, size)

    def exactly(self, name: str, size: int) -> bytes:
        got = b""
        while len(got) < size:
            piece = self.clients[name].recv(size - len(got))
            assert piece, "closed by the server"
            got += piece
        return got

    def received(self, timeout_ms: int = 0) -> list[tuple[str, bytes]]:
        """Poll once and return the receives, which are released."""
        self.selector.poll(timeout_ms)
        found = [(r.id, bytes(r.payload)) for r in self.selector.completed_receives]
        for receive in self.selector.completed_receives:
            receive.release()
        return found

    def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(200):
            if condition():
                return
            self.selector.poll(10)
        raise AssertionError(f"never happened: {what}")

    def close(self) -> None:
        self.selector.close()
        for client in self.clients.values():
            client.close()


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> object:
    """Return each polling back end in turn."""
    return BACKENDS[request.param]()


@pytest.fixture
def bench(backend: object) -> Bench:
    return close_at_end(Bench(backend))


def test_second_send_fails_the_connection(bench: Bench) -> None:
    """SL-1: a send while another is in progress is illegal, and the next poll reports the connection as FAILED_SEND."""
    bench.connect("0")
    bench.selector.send("0", b"one")
    with pytest.raises(IllegalStateError):
        bench.selector.send("0", b"two")
    bench.selector.poll(0)
    assert bench.selector.disconnected == {"0": "FAILED_SEND"}
    with pytest.raises(IllegalStateError):
        bench.selector.send("0", b"three")


def test_send_to_an_unknown_channel(bench: Bench) -> None:
    """SL-2: an unknown id is illegal."""
    with pytest.raises(IllegalStateError, match="no connection 'x'"):
        bench.selector.send("x", b"a")


def test_id_twice(bench: Bench) -> None:
    """SL-3: a duplicate id is illegal."""
    bench.connect("0")
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(IllegalStateError, match="already"):
        bench.selector.register(theirs, "0")


def test_mute(bench: Bench) -> None:
    """SL-4: a muted connection delivers nothing until it is unmuted."""
    bench.connect("0")
    bench.connect("1")
    bench.request("0", b"hello")
    bench.request("1", b"hi")
    bench.selector.mute("1")
    assert bench.received(100) == [("0", b"hello")]
    assert bench.received(0) == []
    assert bench.selector.mute_state("1") == "MUTED"
    bench.selector.unmute("1")
    assert bench.received(100) == [("1", b"hi")]


def test_idle_connection_expires(bench: Bench) -> None:
    """SL-5: after the idle time without traffic the connection is closed as EXPIRED, one per poll."""
    client = bench.connect("0")
    bench.connect("1")
    bench.selector.poll(0)
    bench.clock.advance_ms(6000)
    bench.selector.poll(0)
    assert bench.selector.disconnected == {"0": "EXPIRED"}
    assert client.recv(1) == b""
    bench.selector.poll(0)
    assert bench.selector.disconnected == {"1": "EXPIRED"}


def test_memory_mute_and_recovery(backend: object) -> None:
    """SL-6 to SL-8: a depleted pool mutes the second client, and the release of the first buffer unmutes it."""
    pool = MemoryPool(900, 900)
    bench = Bench(backend, pool=pool)
    for name in ("0", "1"):
        bench.connect(name)
        bench.request(name, name.encode() * 900)
    bench.selector.poll(1000)
    (first,) = bench.selector.completed_receives
    assert (pool.available_bytes, bench.selector.is_out_of_memory) == (0, True)
    bench.selector.poll(10)
    assert bench.selector.completed_receives == []
    assert bench.selector.is_out_of_memory
    first.release()
    assert pool.available_bytes == 900
    bench.selector.poll(1000)
    (second,) = bench.selector.completed_receives
    assert {first.id, second.id} == {"0", "1"}
    assert bytes(second.payload) == second.id.encode() * 900
    assert (pool.available_bytes, bench.selector.is_out_of_memory) == (0, False)
    second.release()
    bench.close()


def test_refused_ones_are_served_in_their_order(backend: object) -> None:
    """KIP-72's fairness: a channel's next request waits behind the channels refused before it, round after round."""
    pool = MemoryPool(900, 900)
    bench = Bench(backend, pool=pool)
    names = [str(i) for i in range(5)]
    for name in names:
        bench.connect(name)
        bench.request(name, name.encode() * 900)
        bench.selector.poll(10)  # in this order
        if name == "0":
            (receive,) = bench.selector.completed_receives
    order = []
    for _ in range(15):
        order.append(receive.id)
        receive.release()
        bench.selector.send(receive.id, b"done")
        bench.request(receive.id, receive.id.encode() * 900)  # readable before the next poll
        bench.selector.poll(1000)
        (receive,) = bench.selector.completed_receives
    assert order == names * 3
    receive.release()
    bench.close()


def test_loops_take_turns_at_the_pool(backend: object) -> None:
    """Loops that share a pool get freed memory in turn, and a release wakes the loop whose turn it is."""
    pool = MemoryPool(900, 900)
    first, second = Bench(backend, pool=pool), Bench(backend, pool=pool)
    held = pool.try_allocate(900)
    assert held is not None
    for bench in (first, second):
        for name in ("a", "b"):
            bench.connect(name)
            bench.request(name, name.encode() * 900)
            bench.selector.poll(10)  # one after the other, so that they are refused in this order
        assert bench.selector.is_out_of_memory
    held.release()
    second.selector.poll(0)
    assert second.selector.completed_receives == []  # the first loop was refused before
    order = []
    for bench in (first, second, first, second):
        bench.selector.poll(1000)
        (receive,) = bench.selector.completed_receives
        order.append(receive.id)
        receive.release()
    assert order == ["a", "a", "b", "b"]
    assert pool.available_bytes == 900
    first.close()
    second.close()


def test_turn_that_is_not_taken_is_lost(backend: object) -> None:
    """A loop that is not polled delays the others for a fifth of a second, not forever."""
    pool = MemoryPool(900, 900)
    idle, busy = Bench(backend, pool=pool), Bench(backend, pool=pool)
    held = pool.try_allocate(900)
    assert held is not None
    for bench in (idle, busy):
        bench.connect("a")
        bench.request("a", b"a" * 900)
        bench.selector.poll(10)
    held.release()
    busy.selector.poll(0)
    assert busy.selector.completed_receives == []
    busy.clock.advance_ms(201)
    busy.selector.poll(0)
    (receive,) = busy.selector.completed_receives
    receive.release()
    idle.close()
    busy.close()


@pytest.mark.parametrize("read_ahead", [False, True])
def test_graceful_close_delivers_what_was_sent(backend: object, read_ahead: bool) -> None:
    """SL-9: complete requests sent before the peer closed are delivered, one per poll, before the disconnect."""
    bench = Bench(backend, read_ahead=read_ahead)
    client = bench.connect("0")
    for i in range(20):
        bench.request("0", b"%d" % i)
    client.sendall(struct.pack(">i", 100) + b"half")
    client.close()
    got: list[bytes] = []
    while not bench.selector.disconnected:
        found = bench.received(100)
        assert len(found) <= 1
        got += [payload for _, payload in found]
    assert got == [b"%d" % i for i in range(20)]
    assert bench.selector.disconnected == {"0": "READY"}
    bench.close()


@pytest.mark.parametrize("read_ahead", [False, True])
def test_normal_operation(backend: object, read_ahead: bool) -> None:
    """SL-10: five connections echo 100 requests each, in order, without a disconnect."""
    bench = Bench(backend, read_ahead=read_ahead)
    names = [str(i) for i in range(5)]
    for name in names:
        bench.connect(name)
        bench.request(name, b"0")
    responses = dict.fromkeys(names, 0)
    while any(n < 100 for n in responses.values()):
        for name, payload in bench.received(100):
            bench.selector.send(name, payload)
        assert not bench.selector.disconnected
        for name in bench.selector.completed_sends:
            assert bench.response(name) == b"%d" % responses[name]
            responses[name] += 1
            bench.request(name, b"%d" % responses[name])
    bench.close()


def test_lowest_priority_channel(bench: Bench) -> None:
    """SL-11: the result is the least recently active channel, or None without connections."""
    assert bench.selector.lowest_priority_channel() is None
    for i in range(5):
        bench.connect(str(i))
        bench.clock.advance_ms(10)
    for name in ("0", "1", "3", "4"):
        bench.clock.advance_ms(10)
        bench.request(name, b"x")
        bench.until(lambda name=name: any(r.id == name for r in bench.selector.completed_receives), "receive")  # type: ignore[misc]
    assert bench.selector.lowest_priority_channel() == "2"
    for i in range(5):
        bench.selector.close(str(i))
    bench.selector.poll(0)
    assert bench.selector.lowest_priority_channel() is None
    assert bench.selector.disconnected == {}


def test_empty_request(bench: Bench) -> None:
    """SL-12: an empty request is delivered and gets its response."""
    bench.connect("0")
    bench.request("0", b"")
    assert bench.received(100) == [("0", b"")]
    bench.selector.send("0", b"")
    bench.selector.poll(100)
    assert bench.selector.completed_sends == ["0"]
    assert bench.response("0") == b""


def test_connections_are_counted(bench: Bench) -> None:
    """SL-13: accepted sockets count as created, and as present."""
    for i in range(5):
        bench.connect(str(i))
    counters = bench.selector.counters()
    assert (counters["connection-creation-total"], counters["connection-count"]) == (5, 5)


def test_partial_progress_is_counted(bench: Bench) -> None:
    """SL-14: byte totals count the bytes moved so far, and a response counts once when it is complete."""
    bench.connect("0")
    payload = b"x" * (4 << 20)
    bench.clients["0"].setblocking(False)
    sent = 0
    stream = struct.pack(">i", len(payload)) + payload
    while not bench.selector.completed_receives:
        with contextlib.suppress(BlockingIOError):
            sent += bench.clients["0"].send(stream[sent : sent + 100000])
        bench.selector.poll(0)
        assert bench.selector.counters()["incoming-byte-total"] <= sent
    bench.selector.completed_receives[0].release()
    assert bench.selector.counters()["incoming-byte-total"] == len(stream)
    bench.selector.send("0", payload)
    bench.selector.poll(0)
    assert 0 < bench.selector.counters()["outgoing-byte-total"] < len(stream)
    assert bench.selector.counters()["response-total"] == 0
    got = 0
    while not bench.selector.completed_sends:
        with contextlib.suppress(BlockingIOError):
            got += len(bench.clients["0"].recv(1 << 20))
        bench.selector.poll(0)
    assert bench.selector.counters()["outgoing-byte-total"] == len(stream)
    assert bench.selector.counters()["response-total"] == 1


def test_results_last_for_one_poll(bench: Bench) -> None:
    """SL-15: receives and sends are reported by one poll only."""
    bench.connect("0")
    bench.request("0", b"y" * 1024)
    assert bench.received(100) == [("0", b"y" * 1024)]
    bench.selector.send("0", b"y" * 1024)
    bench.selector.poll(100)
    assert (bench.selector.completed_receives, bench.selector.completed_sends) == ([], ["0"])
    bench.selector.poll(0)
    assert (bench.selector.completed_receives, bench.selector.completed_sends) == ([], [])


def order_of_reading(backend: object, pool_left: int, seed: int) -> str:
    """Return the order in which ten readable connections are read with ``pool_left`` of 1000 bytes in the pool."""
    pool = MemoryPool(1000, 1000)
    held = pool.try_allocate(1000 - pool_left)
    bench = Bench(backend, pool=pool, shuffle_seed=seed)
    for i in range(10):
        bench.connect(str(i))
    for i in range(10):
        bench.request(str(i), b"z")
    bench.selector.poll(100)
    order = "".join(r.id for r in bench.selector.completed_receives)
    assert held is not None
    bench.close()
    return order


def test_low_memory_shuffles_the_order() -> None:
    """P6: with a tenth of the pool left the order is natural; below, it is shuffled by the seed."""
    assert order_of_reading("auto", 100, 1) == "0123456789"
    shuffled = order_of_reading("auto", 99, 7)
    assert sorted(shuffled) == list("0123456789")
    assert shuffled != "0123456789"
    assert order_of_reading("auto", 99, 7) == shuffled
    assert order_of_reading("auto", 99, 8) != shuffled


def test_frame_must_complete_in_time(backend: object) -> None:
    """An incomplete frame closes its connection after the time-out, which starts again after a mute."""
    bench = Bench(backend, frame_timeout_ms=1000)
    bench.connect("slow").sendall(b"\0\0")
    bench.connect("muted").sendall(b"\0\0\0\5hel")
    bench.selector.poll(100)
    bench.selector.poll(0)
    bench.selector.mute("muted")
    bench.clock.advance_ms(1001)
    bench.selector.poll(0)
    assert bench.selector.disconnected == {"slow": "FRAME_TIMEOUT"}
    bench.selector.unmute("muted")
    bench.clients["muted"].sendall(b"lo")
    bench.until(lambda: len(bench.selector.completed_receives) == 1, "the frame is complete")
    assert bytes(bench.selector.completed_receives[0].payload) == b"hello"
    bench.close()


@pytest.mark.parametrize("prefix", [-1, 1025])
def test_impossible_size_closes(backend: object, prefix: int) -> None:
    """A size below zero or above the limit closes the connection after the requests before it."""
    bench = Bench(backend, max_receive_size=1024, read_ahead=True)
    bench.connect("0").sendall(struct.pack(">i", 1) + b"a" + struct.pack(">i", prefix) + b"b")
    assert bench.received(100) == [("0", b"a")]
    bench.until(lambda: "0" in bench.selector.disconnected, "closed")
    bench.close()


def test_closed_selector_says_so(bench: Bench) -> None:
    """A closed selector and a negative time-out are errors, not crashes."""
    with pytest.raises(ValueError, match="timeout_ms"):
        bench.selector.poll(-1)
    bench.selector.close()
    for call in (lambda: bench.selector.poll(0), bench.selector.counters, lambda: bench.selector.mute("0")):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_back_end_must_look_like_a_selector() -> None:
    """An invalid back end is a TypeError or a ValueError."""
    with pytest.raises(TypeError, match=r"needs register\(\)"):
        Selector(backend=object())
    with pytest.raises(ValueError, match="backend must be"):
        Selector(backend="io_uring")


def test_failing_back_end_does_not_end_the_loop() -> None:
    """SS-17: an exception of the poll is logged, and the next poll succeeds."""

    class Failing(selectors.DefaultSelector):
        fail = True

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if self.fail:
                self.fail = False
                raise OSError("injected")
            return super().select(timeout)

    bench = Bench(Failing())
    bench.connect("0")
    bench.request("0", b"x")
    assert bench.received(0) == []
    assert bench.received(100) == [("0", b"x")]
    bench.close()


def test_a_snapshot_says_what_each_connection_is_doing(backend: object) -> None:
    """A snapshot has the reason for a mute, the incomplete frame, its bytes of the pool, and times of the clock."""
    bench = Bench(backend, pool=MemoryPool(600, 600), max_receive_size=600)
    for name in ("quiet", "muted", "half", "starved"):
        bench.connect(name)
    bench.clock.advance_ms(10)
    bench.selector.mute("muted")
    bench.clients["half"].sendall(struct.pack(">i", 600) + b"x" * 7)
    bench.until(lambda: bench.selector.snapshot()["half"]["frame_arrived_bytes"] == 7, "seven bytes of a frame")
    bench.request("starved", b"z" * 500)
    bench.until(lambda: bench.selector.snapshot()["starved"]["muted"] == ["memory_pool"], "no memory for the other")
    taken = bench.selector.snapshot()
    assert list(taken) == ["quiet", "muted", "half", "starved"]
    assert {name: facts["muted"] for name, facts in taken.items()} == {
        "quiet": [],
        "muted": ["explicit"],
        "half": [],
        "starved": ["memory_pool"],
    }
    half = taken["half"]
    assert (half["frame_bytes"], half["memory_pool_bytes"]) == (600, 600)
    assert (half["bytes_received"], half["bytes_sent"], half["idle_ms"], half["open_ms"]) == (11, 0, 0.0, 10.0)
    assert (taken["quiet"]["idle_ms"], taken["quiet"]["mute_state"]) == (10.0, "NOT_MUTED")
    assert taken["starved"]["frame_bytes"] == 500
    bench.selector.close("half")
    bench.until(lambda: "half" not in bench.selector.snapshot(), "the connection is closed")
    bench.until(lambda: not bench.selector.is_out_of_memory, "memory for the other")
    assert bench.selector.snapshot()["starved"]["memory_pool_bytes"] == 0, (
        "a receive that was handed out is its owner's"
    )
    bench.close()
    with pytest.raises(ValueError, match="closed"):
        bench.selector.snapshot()
