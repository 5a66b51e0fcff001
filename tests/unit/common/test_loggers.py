"""Log lines that ``kbroker serve`` writes."""

import subprocess
import sys

PROGRAM = r"""
from kbroker.common import loggers

loggers.show_lower_levels()
loggers.log_from_info("kbroker.groups")
logger = loggers.get_logger("kbroker.groups")
logger.info("group %s: epoch %d", "a\n[2026-01-01] INFO forged \x1b[31m", 2)
try:
    raise ValueError("\x1b[2J")
except ValueError:
    logger.exception("group %s failed", "\u202egnp")
"""


def test_no_name_ends_or_colours_a_line() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, second, *trace = ended.stderr.splitlines()
    assert first.endswith(r"group a\u000a[2026-01-01] INFO forged \u001b[31m: epoch 2 (kbroker.groups)")
    assert second == r"group \u202egnp failed"
    assert trace[-1] == r"ValueError: \u001b[2J"
