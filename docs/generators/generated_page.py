"""Write or check a page of the documentation that is made from tables in the code."""

import argparse
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]


def write_page(name: str, page: Callable[[], str], arguments: list[str], folder: Path = DOCS) -> int:
    """Write `name` into ``folder``; with ``--check`` write nothing.

    Returns: the exit status: 1 if ``--check`` finds that the file differs from the result of ``page``.
    """
    parser = argparse.ArgumentParser(description=f"Write docs/{name} from the tables in the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not up to date")
    is_check = parser.parse_args(arguments).check
    text, file = page(), folder / name
    if not is_check:
        file.write_text(text, encoding="utf-8")
        return 0
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return 0
    generator = Path(name).stem
    print(f"docs/{name} is not up to date: run python docs/generators/{generator}.py")
    return 1
