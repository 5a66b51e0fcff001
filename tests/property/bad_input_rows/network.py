"""Rows of the network: selector, processor, acceptor, server, and requests in Python code."""

import contextlib
import selectors
import socket

from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker._core.network.poller import PortablePoller
from kbroker._core.network.selector import EVENTS, Endpoint, IllegalStateError, MuteTable, Receive, Selector
from kbroker._core.requests.memory_pool import MemoryPool
from kbroker._core.requests.request_queue import Queue
from kbroker.common.listeners import Listener
from kbroker.network._acceptor import Acceptor
from kbroker.network.options import SocketServerOptions
from kbroker.network.processor._inbound import ChannelThrottle, InboundRequest, OwnedPayload, receive
from kbroker.network.processor._processor import Processor
from kbroker.network.request_channel import RequestChannel, SuppressedResponses
from kbroker.network.socket_server import SocketServer
from tests.support.bad_input import BUFFERS, JUNK, OBJECTS, Call, Life, Object, Refusal, Row, Storm, refused

# only descriptors that are never open: an open one would belong to other code
NO_FLAG = OBJECTS.filter(lambda x: not isinstance(x, bool))
DESCRIPTORS = st.one_of(NO_FLAG, st.integers(2**20, 2**70), st.integers(max_value=-1))
IDS = st.one_of(st.sampled_from(["a", "b"]), JUNK)
ERRORS = (IllegalStateError, OSError, BufferError)
SELECTOR_CALLS = {
    "register": [DESCRIPTORS, IDS], "poll": [st.one_of(st.sampled_from([0, -1, -(2**70)]), OBJECTS)],
    "send": [IDS, st.one_of(BUFFERS, JUNK)], "mute": [IDS], "unmute": [IDS], "mute_state": [IDS], "is_open": [IDS],
    "wakeup": [], "counters": [], "lowest_priority_channel": [], "is_out_of_memory": [], "completed_receives": [],
}  # fmt: skip


def selector(data: st.DataObject) -> Life:
    """Yield a selector with an open and a half-closed connection, then the same selector closed."""
    pool = MemoryPool(50)
    backend = data.draw(st.sampled_from(["auto", "selectors"]))
    made = Selector(
        pool=pool, backend=selectors.DefaultSelector() if backend == "selectors" else backend,
        read_ahead=data.draw(st.booleans()), max_receive_size=50,
    )  # fmt: skip
    with contextlib.ExitStack() as clean_up:
        clean_up.callback(made.close)
        ends = {}
        for name in ("a", "b"):
            ours, ends[name] = socket.socketpair()
            clean_up.callback(ends[name].close)
            made.register(ours, name)
            ends[name].sendall(data.draw(st.binary(max_size=80)))
        ends["b"].close()
        yield made
        made.close(None)
        assert pool.available_bytes == 50
        yield made


def polled_selector(*given: object, **words: object) -> None:
    """Make, poll and close a selector."""
    made = Selector(*given, **words)  # type: ignore[arg-type]
    made.poll(0)
    made.close()


def mute_table(data: st.DataObject) -> Life:
    """Yield a mute table, which accepts only its own events."""
    yield MuteTable()


def empty_receive(data: st.DataObject) -> Life:
    """Yield an empty receive, which has no bytes."""
    one = Receive()
    yield one
    assert refused(memoryview, one) is ValueError
    Endpoint()


def lost_responses(data: st.DataObject) -> Life:
    """Yield suppressed responses, which keep nothing, even when they are closed twice."""
    lost = SuppressedResponses(data.draw(st.booleans()))
    yield lost
    assert (lost.kept, lost.lost) == (0, 0)


def never(found: object) -> bool:
    """Reject every result: the function must refuse all arguments of its row."""
    return False


def channel(data: st.DataObject) -> Life:
    """Yield a closed request channel, for which any number is a time-out and NaN is an error."""
    made = RequestChannel(clock=VirtualClock())
    made.close()
    yield made
    assert refused(made.receive, float("nan")) is ValueError
    assert made.receive(float("inf")) is None


def forged_request(data: st.DataObject) -> Life:
    """Yield a request that no network thread made, which counts as completed."""
    request = InboundRequest.__new__(InboundRequest)
    yield request
    assert request.has_response
    for throttle in (ChannelThrottle.__new__(ChannelThrottle), ChannelThrottle()):
        throttle.end()
    assert bytes(memoryview(OwnedPayload.__new__(OwnedPayload))) == b""


def processor(data: st.DataObject) -> Life:
    """Yield a processor that does not run; it refuses to run in the main thread."""
    made = Processor("x", 0, Queue(5))
    yield made
    assert refused_to_run(made)


def acceptor(data: st.DataObject) -> Life:
    """Yield an acceptor, which refuses wrong processors and sizes, and refuses to run in the main thread."""
    worker = Processor("x", 0, Queue(5))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert refused(Acceptor, server.fileno(), [worker, 5]) is TypeError
        assert refused(Acceptor, server.fileno(), [worker], send_buffer_bytes=2**40) is ValueError
        made = Acceptor(server.fileno(), [worker])
        yield made
        assert refused_to_run(made)


def refused_to_run(thing: Processor | Acceptor) -> bool:
    try:
        thing.run()
    except RuntimeError as why:
        return "needs its own thread" in str(why)
    return False


HERE = Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)
PROCESSOR_OPTIONS = ("framing", "max_request_bytes", "delimiter", "idle_ms", "frame_timeout_ms", "request_batch_max",
                     "principal", "send_files")  # fmt: skip
PROCESSOR_WORDS = {
    **dict.fromkeys(("pool", "clock", "listener_id", "security"), JUNK),
    "options": st.one_of(
        JUNK, st.dictionaries(st.sampled_from(PROCESSOR_OPTIONS), JUNK).map(lambda words: SocketServerOptions(**words))
    ),
}
SELECTOR_WORDS = dict.fromkeys(
    ("framing", "max_receive_size", "delimiter", "pool", "idle_ms", "frame_timeout_ms", "clock", "shuffle_seed"), JUNK
)
PROCESSOR_CALLS = {
    "offer": [st.one_of(NO_FLAG, st.integers(max_value=-1))], "counters": [], "begin_stop": [], "finish_stop": [],
    "__init__": [],
}  # fmt: skip
REQUEST_NAMES = ("payload", "body", "client_id", "principal", "connection_id", "size_bytes", "respond_nothing", "close")
MUTE_CALLS = {"handle": [st.one_of(st.sampled_from(EVENTS), JUNK)], "mute": [], "maybe_unmute": [], "state": []}
NO_TIMES = st.one_of(st.sampled_from([0, 0.0, -1.0, float("-inf")]), st.text())
PROCESSORS = st.one_of(st.builds(lambda: [Processor("x", 0, Queue(5))]), JUNK)


def closed_queue() -> Queue:
    made = Queue(5, VirtualClock())
    made.close()
    return made


def wrong_server(word: str) -> Call:
    return Call(
        f"SocketServer({word}=)", lambda wrong: SocketServer([HERE], Queue(5), **{word: wrong}),
        [OBJECTS.filter(bool)], holds=never,
    )  # fmt: skip


ROWS: list[Row] = [
    Object(
        "Selector",
        selector,
        [
            Storm({**SELECTOR_CALLS, "close": [st.sampled_from(["a", "b", "c"])]}, ERRORS, 20),
            Storm({**SELECTOR_CALLS, "poll": [JUNK], "close": [JUNK]}, ERRORS),
        ],
    ),
    Call("Selector(...)", polled_selector, (), (BufferError,), SELECTOR_WORDS),
    Call("Selector(backend)", lambda *given: Selector(backend=given[0] if given else 0), [OBJECTS]),
    Call("PortablePoller()", PortablePoller, [OBJECTS]),
    Object("Receive", empty_receive, [Storm({"release": [], "payload": [], "id": []})]),
    Object("MuteTable", mute_table, [Storm(MUTE_CALLS, (IllegalStateError,))]),
    Call("SuppressedResponses()", SuppressedResponses, [JUNK]),
    Call("SuppressedResponses(no flag)", lambda wrong: SuppressedResponses(wrong), [NO_FLAG], holds=never),
    Object("SuppressedResponses", lost_responses, [Storm({"close": [], "kept": [], "lost": [], "__init__": []})]),
    Call("receive", receive, [st.one_of(st.builds(closed_queue), JUNK), JUNK]),
    Call("RequestChannel()", RequestChannel, [OBJECTS]),
    Call("RequestChannel(...)", RequestChannel, named={"capacity": JUNK, "clock": JUNK}),
    # without an argument the call waits until the channel is closed
    Call("RequestChannel.receive", lambda time: RequestChannel(clock=VirtualClock()).receive(time), [NO_TIMES]),
    Object("RequestChannel", channel, [Storm({"receive": [JUNK], "closed": [], "close": [], "__len__": []})]),
    Object(
        "InboundRequest",
        forged_request,
        [Storm({**dict.fromkeys(REQUEST_NAMES, ()), "respond": [JUNK], "start_throttle": []})],
    ),
    Call("Processor()", Processor, [JUNK, JUNK, st.one_of(st.builds(Queue, st.just(5)), OBJECTS)], (BufferError,),
         PROCESSOR_WORDS),
    Object("Processor", processor, [Storm(PROCESSOR_CALLS)]),
    Call("Acceptor()", Acceptor, [DESCRIPTORS, PROCESSORS]),
    Object("Acceptor", acceptor, [Storm({"stop": [], "accepted": [], "out_of_descriptors": [], "blocked_ns": []})]),
    Call("SocketServer()", SocketServer, [JUNK, JUNK, JUNK], (AttributeError,), holds=never),
    *[wrong_server(word) for word in ("pool", "clock", "options")],
]  # fmt: skip


def forged() -> InboundRequest:
    return InboundRequest.__new__(InboundRequest)


REFUSALS: dict[str, list[Refusal]] = {
    # Only the network makes these objects; made by other code they are refused or do nothing.
    "InboundRequest": [
        Refusal(TypeError, InboundRequest),
        Refusal(ValueError, lambda: forged().close()),
        Refusal(ValueError, lambda: forged().respond_nothing()),
        Refusal(ValueError, lambda: forged().start_throttle()),
        Refusal(ValueError, lambda: forged().respond(b"")),
        Refusal(ValueError, lambda: forged().suppress_response(SuppressedResponses(True))),
        Refusal(TypeError, lambda: forged().suppress_response(None)),  # type: ignore[arg-type]
    ],
    "SocketServer": [
        Refusal(ValueError, lambda: SocketServer([], Queue(5))),
        Refusal(TypeError, lambda: SocketServer([HERE, "x"], Queue(5))),  # type: ignore[list-item]
        Refusal(ValueError, lambda: SocketServer([HERE], Queue(5), SocketServerOptions(network_threads=0))),
    ],
}
