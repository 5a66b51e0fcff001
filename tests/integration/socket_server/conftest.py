"""Polling back ends, and a server for each of them."""

import selectors
from collections.abc import Iterator

import pytest

from tests.support.socket_rig import Rig, selectors2_selector

BACKENDS: dict[str, object] = {
    "native": "auto",
    "selectors": selectors.DefaultSelector,
    "selectors2": selectors2_selector,
}


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> object:
    """Polling back end, each in turn."""
    return BACKENDS[request.param]


@pytest.fixture
def rig(backend: object) -> Iterator[Rig]:
    made = Rig(backend)
    yield made
    made.close()
