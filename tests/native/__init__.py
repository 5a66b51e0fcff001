"""Compiled modules that only tests and benchmarks use; importing one compiles them all, once, into build/tests.native.

Where Cython or a C++ compiler is missing, the test modules that import one are skipped, and the reason names it.
"""

from pathlib import Path

import pytest

from tests.support import compiled

try:
    __path__.append(str(compiled.built("tests.native", Path(__file__).parent) / "tests" / "native"))
except compiled.CannotCompile as missing:
    pytest.skip(str(missing), allow_module_level=True)
