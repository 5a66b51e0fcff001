"""Compile the study's extension modules against the installed kbroker: python bench/purgatory/build.py

The modules are the harness, kbroker's purgatory behind the harness's interface, and the old design. They are built in
build/purgatory_study, in one folder for each state of the sources, and are not part of any wheel. Needs Cython and a
C++ compiler.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

PACKAGE = "purgatory_study"


def built() -> Path:
    """The folder to put on `sys.path` for PACKAGE; compiles if need be. Raises: CannotCompile; RuntimeError."""
    from tests.support import compiled  # not at the top: an executor of Spark has no tests, and compiles nothing

    return compiled.built(PACKAGE, Path(__file__).with_name("native"))


def native(name: str) -> Any:
    """Import a module of PACKAGE: the copy that `sys.path` already leads to, else the one that `built` compiles.

    Args: `name`: of the module, such as "driver".
    Raises: as `built`.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        sys.path.insert(0, str(built()))
        importlib.invalidate_caches()
    return importlib.import_module(f"{PACKAGE}.{name}")


def old_design() -> Any:
    """The old design, as `StudyRun` takes it."""
    return native("old_design").OldDesign()


if __name__ == "__main__":
    print(built())
