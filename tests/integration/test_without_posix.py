"""kbroker without the modules that Windows lacks: imports, and records through the portable network loop."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.broker import run_to_end

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.platform == "win32", reason="the real thing runs the other tests")
def test_without_posix(tmp_path: Path) -> None:
    """All modules can be imported without fcntl and the like; a broker then locks its folder and keeps records."""
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
