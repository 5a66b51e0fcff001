"""Pages of the documentation that are made from tables in the code: ``python -m MODULE [FILE]``."""

import sys
from collections.abc import Callable
from pathlib import Path


def write_page(module: str, page: Callable[[], str], arguments: list[str]) -> int:
    """Write the page to the file named in the arguments, or print it. Returns: the exit status."""
    if len(arguments) > 1:
        print(f"usage: python -m {module} [FILE]", file=sys.stderr)
        return 2
    if arguments:
        Path(arguments[0]).write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
    return 0
