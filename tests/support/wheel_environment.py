"""Pytest plugin that hides packages other than the given ones, such as those that cibuildwheel installs for tests."""

import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from typing import NoReturn

import pytest


def required(distributions: Iterable[str]) -> set[str]:
    """Return the distributions and everything that they require without extras, by normalized names."""
    found: set[str] = set()
    left = list(distributions)
    while left:
        name = _normalized(left.pop())
        if name not in found:
            found.add(name)
            try:
                left += [one for one in requires(name) or () if "extra ==" not in one]
            except PackageNotFoundError:  # required only with another Python or system
                continue
    return found


def _normalized(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s;<>=!~\[(]", requirement, maxsplit=1)[0]).lower()


class _Hidden:
    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._packages:
            self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-required", default="", help="distributions, separated by commas")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    kept = required(["kbroker", *config.getoption("--only-required").split(",")])
    hidden = {
        package
        for package, names in packages_distributions().items()
        if not any(_normalized(name) in kept for name in names)
    }
    sys.meta_path.insert(0, _Hidden(hidden - sys.modules.keys()))
