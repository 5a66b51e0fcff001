"""Verification of a Produce request whose coordinator cannot be reached: each partition gets the error."""

from typing import Any

import pytest

from kbroker.apis.api00_produce import transaction_verifier
from kbroker.apis.api00_produce.transaction_verifier import TransactionVerifier
from kbroker.common.errors import Errors, KafkaError
from tests.support.errors import raising


class TransactionPartitions:
    """Pending verification of two partitions."""

    transactional_id = "x"
    places = (("t", 0), ("t", 1))


@pytest.mark.parametrize(
    ("failure", "error", "lines"),
    [
        (KafkaError(Errors.COORDINATOR_NOT_AVAILABLE), Errors.COORDINATOR_NOT_AVAILABLE, []),
        (ZeroDivisionError(), Errors.UNKNOWN_SERVER_ERROR, ["cannot verify the transaction of 'x'"]),
    ],
)
def test_no_manager(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
    error: Errors,
    lines: list[str],
) -> None:
    """The request continues with the error of each partition, and a defect is logged."""
    request: Any = object()
    answers: list[tuple[Any, dict[Any, int]]] = []
    handed: list[Any] = []
    monkeypatch.setattr(
        transaction_verifier, "pending_partitions", lambda one: TransactionPartitions() if one is request else None
    )
    monkeypatch.setattr(transaction_verifier, "end_verification", lambda one, errors: answers.append((one, errors)))
    verifier = TransactionVerifier(raising(failure), handed.append)
    other: Any = object()
    assert not verifier.take(other)
    assert (answers, handed) == ([], [])
    assert verifier.take(request)
    assert answers == [(request, dict.fromkeys(TransactionPartitions.places, int(error)))]
    assert handed == [request]
    assert caplog.messages == lines
