"""The transactional id in a request's body, for the request log. Produce's is recorded by its native handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIND_COORDINATOR, _INIT_PRODUCER_ID, _ADD_PARTITIONS, _ADD_OFFSETS, _END, _COMMIT_OFFSETS = 10, 22, 24, 25, 26, 28
_TRANSACTION = 1  # key type in FindCoordinator


def transactional_id_of(api_key: int, body: Mapping[str, Any]) -> str | None:
    """Return the transactional id of a request, the first of several, or None.

    Args: ``body``: as decoded by the codec.
    """
    if api_key in (_INIT_PRODUCER_ID, _ADD_OFFSETS, _END, _COMMIT_OFFSETS):
        found = body["TransactionalId"]
    elif api_key == _ADD_PARTITIONS:
        transactions = body.get("Transactions")
        found = transactions[0]["TransactionalId"] if transactions else body.get("V3AndBelowTransactionalId")
    elif api_key == _FIND_COORDINATOR and body.get("KeyType") == _TRANSACTION:
        keys = body.get("CoordinatorKeys")
        found = keys[0] if keys else body.get("Key")
    else:
        return None
    return found or None
