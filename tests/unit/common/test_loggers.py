"""Log lines that ``kbroker serve`` writes."""

import re
import subprocess
import sys

PROGRAM = r"""
from kbroker.common import loggers

loggers.write_lines()
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
    assert second.endswith(r"] ERROR group \u202egnp failed (kbroker.groups)")
    assert trace[-1] == r"ValueError: \u001b[2J"


def test_every_line_has_a_time_a_level_of_kafka_and_a_logger() -> None:
    """INFO and DEBUG are written if their level allows them; levels have Kafka's names."""
    program = (
        "from kbroker.common import loggers\nloggers.write_lines()\nlogger = loggers.get_logger('kbroker.x')\n"
        "for level in ('debug', 'info', 'warning', 'error', 'critical'): getattr(logger, level)('seen')\n"
        "logger.setLevel(10)\nlogger.debug('seen')\nlogger.info('seen')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    line = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] ([A-Z]+) seen \(kbroker\.x\)"
    found = [re.fullmatch(line, one) for one in ended.stderr.splitlines()]
    assert [one and one[1] for one in found] == ["WARN", "ERROR", "FATAL", "DEBUG", "INFO"]
