"""Standard output that nothing reads any more."""

import os
import sys
from pathlib import Path

import pytest

from kbroker.cli.output import is_output_closed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")


def test_a_pipe_without_a_reader_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert not is_output_closed()
        os.close(reading)
        assert is_output_closed()


def test_a_fifo_without_a_reader_may_get_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of a FIFO that closes it does not end the command that writes to it."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with path.open("w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        os.close(reading)
        assert not is_output_closed()
