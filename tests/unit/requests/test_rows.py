"""Tests of response rows that several APIs share."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.common.errors import Errors
from kbroker.requests.rows import fenced_as_known


@pytest.mark.parametrize(
    ("version", "error", "expected"),
    [
        (1, Errors.PRODUCER_FENCED, Errors.INVALID_PRODUCER_EPOCH),
        (2, Errors.PRODUCER_FENCED, Errors.PRODUCER_FENCED),
        (1, Errors.INVALID_TXN_STATE, Errors.INVALID_TXN_STATE),
    ],
)
def test_fencing_has_a_code_that_the_client_knows(version: int, error: Errors, expected: Errors) -> None:
    """PRODUCER_FENCED is returned from version 2 on; earlier clients get INVALID_PRODUCER_EPOCH (KIP-588)."""
    request: Any = SimpleNamespace(api_version=version)
    assert fenced_as_known(error, request, 2) is expected
