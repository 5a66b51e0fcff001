"""Polling back ends, and a server for each of them."""

import selectors

import pytest

from tests.support.closing import close_at_end
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
def rig(backend: object) -> Rig:
    return close_at_end(Rig(backend))
