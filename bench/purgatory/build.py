"""Compile the old design against the installed kbroker: python bench/purgatory/build.py

It goes to build/purgatory_old_design, one folder for each state of the sources, and is no part of any wheel; all else
that the study runs is in kbroker.spark.purgatory. Needs Cython and a C++ compiler.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tests.support import compiled  # noqa: E402

PACKAGE = "purgatory_old_design"


def built() -> Path:
    """The folder to put on `sys.path` for PACKAGE; compiles if need be."""
    return compiled.built(PACKAGE, Path(__file__).with_name("native"))


def old_design() -> Any:
    """The old design, as `StudyRun` takes it."""
    folder = str(built())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(f"{PACKAGE}.old_design").OldDesign()


if __name__ == "__main__":
    print(built())
