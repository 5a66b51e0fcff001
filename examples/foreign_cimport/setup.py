"""A package of somebody else's whose compiled module uses kbroker's timing wheel and pool at the C level."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    packages=["foreign"],
    package_dir={"": "src"},
    ext_modules=cythonize(
        # C++17, as the .pxd files of kbroker hold inline C++ (locks and atomics); nothing is linked against
        [Extension("foreign.sessions", ["src/foreign/sessions.pyx"], language="c++", extra_compile_args=["-std=c++17"])]
    ),
)
