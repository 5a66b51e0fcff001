"""Compiled modules for tests and benchmarks; importing one compiles all of them once into build/tests.native.

Without Cython or a C++ compiler, test modules that import one are skipped with this reason.
"""

from pathlib import Path

import pytest

from tests.support import compiled

try:
    __path__.append(str(compiled.built("tests.native", Path(__file__).parent) / "tests" / "native"))
except compiled.CannotCompile as missing:
    pytest.skip(str(missing), allow_module_level=True)
