"""Generators of docs/configuration.md and docs/metrics.md; `make lint` checks that the pages are up to date."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kbroker.common.configs.config import BROKER_TABLE, TOPIC_TABLE

GENERATORS = Path(__file__).parents[2] / "docs" / "generators"


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the folder of the generators importable."""
    monkeypatch.syspath_prepend(str(GENERATORS))
    for name in ("configuration", "generated_page"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def generated_page(generators: None) -> ModuleType:
    """Return the module that the generators share."""
    return importlib.import_module("generated_page")


def test_every_key_is_on_the_page(generators: None) -> None:
    page = importlib.import_module("configuration").page()
    assert [name for name in (*BROKER_TABLE, *TOPIC_TABLE) if f"| `{name}` |" not in page] == []


def test_check_reports_a_stale_page(
    generated_page: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --check a missing or different page gives status 1 and the command to run, and no file is written."""

    def run(*arguments: str) -> int:
        return int(generated_page.write_page("metrics.md", lambda: "new\n", list(arguments), tmp_path))

    stale = "docs/metrics.md is not up to date: run python docs/generators/metrics.py\n"
    assert (run("--check"), capsys.readouterr().out) == (1, stale)
    assert list(tmp_path.iterdir()) == []
    assert run() == 0
    assert (tmp_path / "metrics.md").read_text() == "new\n"
    assert (run("--check"), capsys.readouterr().out) == (0, "")
    (tmp_path / "metrics.md").write_text("old\n")
    assert (run("--check"), capsys.readouterr().out) == (1, stale)
