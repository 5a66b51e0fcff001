"""Fixtures of the consumer groups' tests."""

import pytest

from tests.support.consumer_groups import ConsumerGroupBench


@pytest.fixture
def bench() -> ConsumerGroupBench:
    """Return a coordinator of consumer groups, with topic t of four partitions."""
    return ConsumerGroupBench()
