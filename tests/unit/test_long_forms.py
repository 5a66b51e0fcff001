"""Selection of tests by `make soak`."""

import pytest

from tests.support import long_forms


def test_a_test_that_has_a_long_form_is_in_the_soak(request: pytest.FixtureRequest, soak: bool) -> None:
    long_forms.mark([request.node])
    assert request.node.get_closest_marker("soak") is not None


def test_a_test_of_one_length_is_not_marked(request: pytest.FixtureRequest) -> None:
    long_forms.mark([request.node])
    assert request.node.get_closest_marker("soak") is None
