"""Raw requests of every advertised API and version, answered field by field as Apache Kafka answered them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import need
from tests.support.broker import BrokerProcess

LEFT_OUT = Path(__file__).with_name("conform_left_out.txt")


def left_out() -> list[str]:
    """The expressions of the file; each line has a reason behind its expression."""
    rows = [
        line.split(None, 1) for line in LEFT_OUT.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")
    ]
    assert all(len(row) == 2 for row in rows), "a case is left out without a reason"
    return [row[0] for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_answers_are_apache_kafkas(conform_broker: BrokerProcess) -> None:
    """No field of any answer differs from the recording of Apache Kafka."""
    tool = need.oracle("tools/conform/conform.py")
    chosen = "".join(f"(?!{row.removeprefix('^')})" for row in left_out())
    done = subprocess.run(
        [sys.executable, str(tool), "check", conform_broker.bootstrap, "-k", f"^{chosen}", "--json", "-j", "6"],
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.stdout, done.stderr[-2000:]
    verdicts = json.loads(done.stdout)
    wrong = [case for case in verdicts["cases"] if case["status"] not in ("passed", "absent")]
    told = "\n".join(f"{case['status']} {case['id']}: {case['differences'][:3]}" for case in wrong[:20])
    assert not wrong, f"{len(wrong)} cases differ\n{told}"
    assert verdicts["counts"]["passed"] > 1500
    assert conform_broker.is_alive()


@pytest.fixture(scope="module")
def conform_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    need.oracle("tools/conform/conform.py")
    settings = {"group.initial.rebalance.delay.ms": "0"}
    broker = BrokerProcess(tmp_path_factory.mktemp("conform") / "data", settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.discard()
