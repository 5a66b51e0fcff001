"""Notes of `kbroker requests tail` below a request."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kbroker.cli import cli, requests
from kbroker.cli.requests import HEADER, WIDTHS, _cells, notes_of
from kbroker.client.request_records import row_of


def verdict(**more: Any) -> dict[str, Any]:
    base = {"quotaType": "Request", "clientId": "app", "level": 7, "observed": 0.526, "limit": 0.01, "refused": False}
    return {**base, "delayAskedMs": 535_000, "delayServedMs": 1000, **more}


def notes(**quota: Any) -> list[str]:
    return notes_of(row_of({"time": "2026-01-02T03:04:05Z", "quota": quota}))


def test_the_delay_that_was_served() -> None:
    """A delay for request time is capped at a window, and rates have a decimal."""
    shorter = verdict(quotaType="Produce", observed=2000.0, limit=1000.0, delayServedMs=0)
    assert notes(verdicts=[verdict(), shorter, verdict(refused=True)]) == [
        "Request quota of client app: 0.5 of 0.01, waits 1.0s",
        "Produce quota of client app: 2.0kB of 1.0kB, waits longer anyway",
        "Request quota of client app: 0.5 of 0.01, refused",
    ]


def test_shadows_are_named_as_such() -> None:
    """The verdict of a shadow quota is printed below the request too."""
    assert notes(shadowVerdicts=[verdict(), verdict(refused=True, quotaType="ControllerMutation", observed=-3.0)]) == [
        "shadow: Request quota of client app: 0.5 of 0.01, would wait 1.0s",
        "shadow: ControllerMutation quota of client app: -3 of 0.01, would be refused",
    ]


LINE = b'{"version": 4, "time": "2026-01-02T03:04:05Z", "requestHeader": {"clientId": "app"}}\n'


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (b"", (), "expected records of a request log, found none so far\n"),
        (b"root:x:0:0:root:/root:/bin/bash\n", (), "expected records of a request log, found none so far\n"),
        (2 * LINE, ("--client", "other"), "the filters match no record of the last 2\n"),
        (2 * LINE, ("--client", "app"), ""),
        (2 * LINE, ("--client", "app", "-n", "0"), ""),
    ],
)
def test_nothing_to_show_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, options: tuple[str, ...], said: str
) -> None:
    """A file that is not a request log, and filters without a match, are reported on stderr."""
    path = tmp_path / "requests-1.jsonl"
    path.write_bytes(data)
    monkeypatch.setattr(requests, "note", lambda message: click.echo(message, err=True))  # as on a terminal
    result = CliRunner().invoke(cli, ["requests", "tail", str(path), *options])
    assert (result.exit_code, result.stderr) == (0, said)


@pytest.mark.parametrize("time", ["2026-01-02T03:04:05.678901Z", "2026-01-02T08:04:05.678901+05:00"])
def test_times_of_day_are_utc(time: str, in_another_zone: None) -> None:
    """Times of day are UTC, as in `quotas explain` and the console."""
    assert _cells(row_of({"time": time}))[0] == "03:04:05.678"
    assert HEADER[0] == "TIME (UTC)"
    assert all(len(name) <= width for name, width in zip(HEADER, WIDTHS, strict=True))
