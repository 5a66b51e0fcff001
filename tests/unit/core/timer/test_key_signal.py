"""Signal of events about watched keys: its watches and its close. Only native code raises events."""

import threading

import pytest

from kbroker._core.timer.key_signal import KeySignal


def test_keys_are_watched_once() -> None:
    signal = KeySignal()
    for key in ((1, 2), (1, 2), (2, 1), (-(2**63), 2**63 - 1)):
        signal.watch(*key)
    assert signal.watched == 3
    with pytest.raises(OverflowError):
        signal.watch(2**63, 0)


def test_an_ended_watch_is_gone() -> None:
    signal = KeySignal()
    signal.unwatch(1, 1)
    for low in range(3):
        signal.watch(1, low)
    signal.unwatch(1, 1)
    assert signal.watched == 2
    signal.unwatch(1, 1)
    signal.watch(1, 1)
    assert signal.watched == 3
    with pytest.raises(OverflowError):
        signal.unwatch(0, 2**63)


def test_close_ends_the_wait_and_the_watches() -> None:
    signal = KeySignal()
    for low in range(1000):
        signal.watch(1, low)
    found: list[list[tuple[int, int]]] = []
    waiting = threading.Thread(target=lambda: found.append(signal.wait()))
    waiting.start()
    signal.close()
    waiting.join(20)
    assert found == [[]]
    signal.watch(1, 2)
    assert (signal.watched, signal.wait()) == (0, [])
