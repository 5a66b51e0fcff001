"""Each way to poll, and a server on it."""

from __future__ import annotations

import collections
import collections.abc
import selectors
from collections.abc import Iterator

import pytest

from tests.support.socket_rig import Rig


def selectors2_selector() -> object:
    """selectors2 2.0.2 still imports Mapping from where Python 3.9 had it."""
    if not hasattr(collections, "Mapping"):
        collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    selectors2 = pytest.importorskip("selectors2")
    return selectors2.SelectSelector()


BACKENDS: dict[str, object] = {
    "native": "auto",
    "selectors": selectors.DefaultSelector,
    "selectors2": selectors2_selector,
}


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> object:
    """Each way to poll in turn."""
    return BACKENDS[request.param]


@pytest.fixture
def rig(backend: object) -> Iterator[Rig]:
    made = Rig(backend)
    yield made
    made.close()
