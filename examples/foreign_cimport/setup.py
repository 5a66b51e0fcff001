"""Build of a foreign package whose compiled module uses kbroker's timing wheel and memory pool at the C level."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    packages=["foreign"],
    package_dir={"": "src"},
    ext_modules=cythonize(
        # C++17, because kbroker's .pxd files contain inline C++ (locks and atomics); no library is linked
        [Extension("foreign.sessions", ["src/foreign/sessions.pyx"], language="c++", extra_compile_args=["-std=c++17"])]
    ),
)
