"""Compile the study's extension modules with the installed kbroker: python bench/purgatory/build.py

The modules are the harness, kbroker's purgatory behind the harness's interface, and the old design. They are built in
build/purgatory_study, in one folder per state of the sources, and are not part of any wheel. Needs Cython and a C++
compiler.
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
    """Return the folder of PACKAGE for `sys.path`, compiled if necessary. Raises: CannotCompile; RuntimeError."""
    from tests.support import compiled  # imported here because executors of Spark have no tests and compile nothing

    return compiled.built(PACKAGE, Path(__file__).with_name("native"))


def native(name: str) -> Any:
    """Import a module of PACKAGE from `sys.path`, or from the folder that `built` compiles.

    Args: `name`: name of the module, such as "driver".
    Raises: as `built`.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        sys.path.insert(0, str(built()))
        importlib.invalidate_caches()
    return importlib.import_module(f"{PACKAGE}.{name}")


def old_design() -> Any:
    """Return the old design for `StudyRun`."""
    return native("old_design").OldDesign()


if __name__ == "__main__":
    print(built())
