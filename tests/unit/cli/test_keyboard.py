"""Keys of a terminal."""

import sys

import pytest

from kbroker.cli.keyboard import keyboard


def test_a_system_without_termios_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows is such a system: `kbroker top` runs there without keys."""
    monkeypatch.setitem(sys.modules, "termios", None)
    with keyboard() as keys:
        assert keys is None
