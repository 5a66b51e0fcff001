"""The reference is made from docstrings and stubs; a page that was not made again tells what was."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_reference_is_up_to_date() -> None:
    """`python docs/generate_reference.py` would change nothing."""
    spec = importlib.util.spec_from_file_location("generate_reference", ROOT / "docs" / "generate_reference.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    written = {p.name: p.read_text(encoding="utf-8") for p in generator.REFERENCE.glob("*.md")}
    assert written == generator.pages()
