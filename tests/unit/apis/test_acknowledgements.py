"""Acknowledgements of ShareFetch and ShareAcknowledge: what a request may contain."""

from uuid import UUID

import pytest

from kbroker.apis.share_requests import Acknowledged, acknowledge
from kbroker.common.errors import Errors
from kbroker.requests.context import RequestContext
from kbroker.security.authorizer import checks
from kbroker.share.sessions import SharedPartition
from kbroker.share.share_partition import AcknowledgementBatch
from tests.support.server import Bench

ACCEPT, REJECT, RENEW = 1, 3, 4
PLACE = SharedPartition(UUID(int=1), 0, "t")


@pytest.mark.parametrize(
    ("batches", "is_valid"),
    [
        ([(-1, 0, [ACCEPT])], True),  # as in Kafka
        ([(-2, 0, [ACCEPT])], False),
        ([(5, 4, [ACCEPT])], False),
        ([(0, 4, [ACCEPT]), (4, 6, [REJECT])], True),
        ([(0, 4, [ACCEPT]), (3, 6, [ACCEPT])], False),
        ([(0, 4, [])], False),
        ([(0, 2, [0, ACCEPT, REJECT])], True),
        ([(0, 2, [ACCEPT, REJECT])], False),
        ([(0, 2, [-1])], False),
        ([(0, 2, [RENEW])], False),
    ],
)
def test_batches_of_a_request(bench: Bench, batches: list[tuple[int, int, list[int]]], is_valid: bool) -> None:
    """Batches are in order, and each has one type or one for each of its records."""
    outcomes: Acknowledged = {}
    given = {PLACE: [AcknowledgementBatch(*one) for one in batches]}
    request = RequestContext(79, 1)
    acknowledge(bench.ctx, {}, request, given, (), checks.SHARE_ACKNOWLEDGE, outcomes.update)
    error = outcomes[PLACE]
    assert error is not None
    assert error.error is (Errors.TOPIC_AUTHORIZATION_FAILED if is_valid else Errors.INVALID_REQUEST)


@pytest.mark.parametrize(("version", "is_renewal", "is_valid"), [(2, True, True), (2, False, False), (1, True, False)])
def test_locks_are_renewed_by_a_renewal_only(bench: Bench, version: int, is_renewal: bool, is_valid: bool) -> None:
    """The type RENEW needs version 2 and a request that is marked as a renewal."""
    outcomes: Acknowledged = {}
    given = {PLACE: [AcknowledgementBatch(0, 2, [RENEW])]}
    body, request = {"IsRenewAck": is_renewal}, RequestContext(79, version)
    acknowledge(bench.ctx, body, request, given, (), checks.SHARE_ACKNOWLEDGE, outcomes.update)
    error = outcomes[PLACE]
    assert error is not None
    assert error.error is (Errors.TOPIC_AUTHORIZATION_FAILED if is_valid else Errors.INVALID_REQUEST)
