"""No import needs a module that Windows lacks, and neither does a record's path on the portable loop."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.broker import run_to_end

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.platform == "win32", reason="the real thing runs the other tests")
def test_without_posix(tmp_path: Path) -> None:
    """No module of ours imports fcntl and its like; a broker keeps its folder locked and its records without them."""
    (tmp_path / "data").mkdir()
    output = run_to_end(
        [sys.executable, "-m", "tests.support.no_posix", str(tmp_path / "data")],
        seconds=120,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )
    modules, locked, end = output.splitlines()
    wanted = {"kbroker._core.network.selector", "kbroker.client.admin", "kbroker.cli.serve", "kbroker.testing.plugin"}
    assert wanted <= set(modules.split())
    assert "in use by this process" in locked
    assert end == "done"
