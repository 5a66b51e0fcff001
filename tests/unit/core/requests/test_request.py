"""Requests of the cores: their size, and the context that their owner chooses."""

from tests.native.request_contexts import frames, recycled, sizes, without_context
from tests.support.socket_rig import frame


def test_a_request_is_small() -> None:
    """A request of another protocol has frame, response and times only; Kafka's part follows it."""
    request, kafka = sizes()
    assert request <= 832
    assert kafka >= 480
    assert request % 8 == kafka % 8 == 0


def test_context_is_made_and_freed_with_its_request() -> None:
    """New contexts are zeroed, also for payloads with their own memory; a release gets context and response."""
    payloads = [b"small", b"", b"large" * 10_000, b"last"]
    found = frames(b"".join(frame(p) for p in payloads))
    assert found == (payloads, 0, 1 + 2 + 3 + 4, 4)


def test_frame_that_never_completes_is_released() -> None:
    """The empty context of a frame that is dropped before its end is released too."""
    assert frames(frame(b"whole") + frame(b"half")[:-1]) == ([b"whole"], 0, 1, 1)


def test_memory_of_small_requests_is_used_again() -> None:
    """The next small frame gets the memory of the last one, as if it were new; a larger frame has its own."""
    payloads = [b"one", b"", b"s" * 512, b"l" * 513, b"l" * 20_000, b"last"]
    results, kept, found = recycled(payloads)
    assert [payload for payload, _, _ in results] == payloads
    assert [place == 0 for _, place, _ in results] == [True, True, True, False, False, True]
    assert [room for _, _, room in results] == [509, 512, 320, 320, 320, 508]
    assert (kept, found) == (1, 0)


def test_no_more_than_64_requests_are_kept() -> None:
    results, kept, found = recycled([b"%d" % i for i in range(200)], held=100)
    assert [payload for payload, _, _ in results] == [b"%d" % i for i in range(200)]
    assert len({place for _, place, _ in results}) >= 100
    assert (kept, found) == (64, 0)


def test_request_without_context() -> None:
    """Without a context no release is called."""
    assert without_context()
