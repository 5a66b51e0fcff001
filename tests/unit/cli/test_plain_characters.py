"""Output of commands if the terminal, or a file, lacks some characters."""

import contextlib
import io
import json

import pytest

from kbroker.cli.plain_characters import BARS, HANDLER, make_printable
from tests.support.cli import run
from tests.support.quota_broker import QuotaBroker

NAME = "é … א \U0001f600"


@pytest.fixture
def broker(broker: QuotaBroker) -> QuotaBroker:
    broker.quotas = {(("user", NAME),): {"producer_byte_rate": 1024.0}}
    return broker


@pytest.mark.parametrize(
    ("charset", "shown"),
    [("utf-8", NAME), ("ascii", NAME), ("latin-1", "é ~ \\u05d0 \\U0001f600"), ("cp1252", "é … \\u05d0 \\U0001f600")],
)
def test_every_name_is_printed(broker: QuotaBroker, charset: str, shown: str) -> None:
    """A character that the charset lacks is printed as an escape; without a locale the charset is UTF-8."""
    result = run(broker, "quotas", "list", charset=charset)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout_bytes.decode(charset.replace("ascii", "utf-8")).splitlines()[1].startswith(f"{shown}  ")


@pytest.mark.parametrize("charset", ["utf-8", "ascii", "latin-1"])
def test_json_is_exact(broker: QuotaBroker, charset: str) -> None:
    """JSON output has the exact name on any terminal."""
    result = run(broker, "quotas", "list", "--json", charset=charset)
    (entry,) = json.loads(result.stdout_bytes.decode(charset.replace("ascii", "utf-8")))
    assert entry["entity"] == {"user": NAME}


def test_a_live_view_where_no_locale_is_set() -> None:
    """rich writes to the stream itself, which has to accept its arrows."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with contextlib.redirect_stdout(stream):
        make_printable()
        print("CLIENT▼")
    stream.flush()
    assert stream.buffer.getvalue() == "CLIENT▼\n".encode()


def test_charts_are_digits() -> None:
    """Replacements have the width of the bars, so that no line becomes longer."""
    make_printable()
    assert f"·{BARS} ▲…".encode("ascii", HANDLER) == b".12345678 ^~"
