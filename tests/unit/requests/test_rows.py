"""Rows of responses that several requests have."""

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
    """KIP-588: the code is of version 2 here; earlier clients know another one."""
    request: Any = SimpleNamespace(api_version=version)
    assert fenced_as_known(error, request, 2) is expected
