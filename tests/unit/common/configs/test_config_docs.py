"""docs/configuration.md is what the table says."""

from pathlib import Path

import pytest

from kbroker.common.configs import config_docs
from kbroker.common.configs.config import BROKER_TABLE, TOPIC_TABLE

DOCS = Path(__file__).parents[4] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    """A changed table means: run python -m kbroker.common.configs.config_docs docs/configuration.md."""
    assert DOCS.read_text(encoding="utf-8") == config_docs.page()


def test_every_key_is_on_the_page() -> None:
    """No key of topics or brokers is left out."""
    page = config_docs.page()
    assert [name for name in (*BROKER_TABLE, *TOPIC_TABLE) if f"| `{name}` |" not in page] == []


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes the file named, prints without one, and refuses more than one."""
    assert config_docs.main([str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == config_docs.page()
    assert config_docs.main([]) == 0
    assert capsys.readouterr().out == config_docs.page()
    assert config_docs.main(["a", "b"]) == 2
