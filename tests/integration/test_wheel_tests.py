"""The tests that each wheel must pass, as cibuildwheel runs them: with some of the sources and no optional package."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.broker import run_to_end

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_tests_of_wheels_pass(tmp_path: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    for name in settings["test-sources"]:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    program, *arguments = shlex.split(settings["test-command"])
    assert program == "pytest"
    only = ",".join(settings["test-requires"])
    plugin = ["-p", "tests.support.wheel_environment", f"--only-required={only}", "-p", "no:cacheprovider"]
    printed = run_to_end([sys.executable, "-m", program, "-q", *plugin, *arguments], seconds=3000, cwd=tmp_path)
    assert "needs the package pyarrow" in printed
