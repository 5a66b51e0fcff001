"""Results of commands, and standard output that nothing reads any more."""

import json
import os
import sys
from pathlib import Path

import pytest

from kbroker.cli.output import is_output_closed, print_deleted, print_done
from kbroker.common.errors import Errors, KafkaError

posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")


@posix
def test_a_pipe_without_a_reader_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert not is_output_closed()
        os.close(reading)
        assert is_output_closed()


@posix
def test_a_fifo_without_a_reader_may_get_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that writes to a FIFO does not end when the reader closes the FIFO."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with path.open("w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        os.close(reading)
        assert not is_output_closed()


def test_the_result_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of clients are escaped in each line, so that none controls the terminal; JSON has its own escapes."""
    name = "a\x1b[2J\nb\udcff"
    print_done({"name": name}, False, f"made {name}", "hmac x")
    assert capsys.readouterr().out == "made a\\u001b[2J\\u000ab\\udcff\nhmac x\n"
    print_done({"name": name}, True, "not printed")
    assert json.loads(capsys.readouterr().out) == {"name": name}


@pytest.mark.parametrize("deleted", [0, 2])
def test_what_was_deleted_before_a_failure(capsys: pytest.CaptureFixture[str], deleted: int) -> None:
    """In JSON too, the changes that were made are printed when the next one fails."""
    names = ["a", "b", "c"]

    def delete(name: str) -> None:
        if names.index(name) == deleted:
            raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED)

    with pytest.raises(KafkaError):
        print_deleted("group", names, delete, None, as_json=True)
    rows = [{"group": name, "deleted": True} for name in names[:deleted]]
    assert capsys.readouterr().out == (json.dumps(rows, indent=2) + "\n" if rows else "")
