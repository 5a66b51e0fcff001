"""Messages of commands on a terminal, on a pipe, and with --quiet, in separate processes."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.pipeline.generate import generate_table
from bench.pipeline.population import Shape
from tests.spark.standalone import environment

BAR = re.compile(r"\r\x1b\[2K[\w ]+(?:, stage \d+)?  \[[#.]{24}\] +\d+%  [\d,]+ of [\d,]+ \w+")
STEP = """
from kbroker._core.clock import VirtualClock
from kbroker.cli.progress_display import ProgressDisplay
clock = VirtualClock()
say = ProgressDisplay(clock=clock)
say("beginning")
with say.step("compacting", 10, "files") as step:
    for done in range(10):
        clock.advance_ms(3_000)
        step.at(done)
say("done")
"""


def run(words: list[str], *, terminal: bool) -> tuple[str, str]:
    """Return standard output and the text on stderr, which is a terminal of 80 columns or a pipe."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    given = {**environment(), "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, *words], env=given, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    said = b""
    while True:
        try:
            some = os.read(ours, 65_536)
        except OSError:  # raised at the end of a terminal
            break
        if not some:
            break
        said += some
    os.close(ours)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said.decode()
    return printed.decode(), said.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_bar_and_a_pipe_plain_lines() -> None:
    """The bar is erased at the end, and a pipe gets no escape sequences."""
    _, shown = run(["-c", STEP], terminal=True)
    assert len(BAR.findall(shown)) == 10
    assert max(len(line) for line in re.split(r"\r\x1b\[2K|\n", shown)) < 80
    assert shown.endswith("\r\x1b[2Kdone\n")
    _, lines = run(["-c", STEP], terminal=False)
    assert lines.splitlines() == [
        "beginning",
        "compacting   30%  3 of 10 files  0.2/s  28.0 s left",
        "compacting   70%  7 of 10 files  0.3/s  10.0 s left",
        "done",
    ]


@pytest.mark.soak
def test_commands_on_a_terminal_and_quiet(tmp_path: Path) -> None:
    """Stages of Spark are bars above the table's lines, and with --quiet stderr is empty."""
    table, quotas = str(tmp_path / "table"), tmp_path / "quotas.yaml"
    quotas.write_text(
        "- entity: {user: null, client-id: null}\n  quotas: {producer_byte_rate: 20000}\n", encoding="utf-8"
    )
    command = ["-m", "kbroker", "pipeline"]
    spark = ["--master", "local[2]"]
    generate_table(table, Shape(600_000, 200, days=1))
    for words in (["usage", table, *spark], ["replay", table, "--quotas", str(quotas), *spark], ["compact", table]):
        _, shown = run([*command, *words], terminal=True)
        assert BAR.search(shown) or words[0] == "compact", shown
        assert shown.count("\n") <= 4
        printed_quietly, said = run([*command, *words, "--quiet", "--json"], terminal=True)
        assert said == ""
        assert json.loads(printed_quietly)
