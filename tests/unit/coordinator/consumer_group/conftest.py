"""Fixtures of the consumer groups' tests."""

from tests.support.consumer_groups import ConsumerGroupBench
from tests.support.fixtures import fixture_of

bench = fixture_of(ConsumerGroupBench)
