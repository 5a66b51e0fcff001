"""Requests of the cores: their size, and the context that their owner chooses."""

from tests.native.request_contexts import frames, sizes, without_context
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
    """The empty context of a frame that is dropped half way is released too."""
    assert frames(frame(b"whole") + frame(b"half")[:-1]) == ([b"whole"], 0, 1, 1)


def test_request_without_context() -> None:
    """Without a context no release is called."""
    assert without_context()
