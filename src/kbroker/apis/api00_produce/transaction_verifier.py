"""Verification of the transactional batches of a Produce with the transaction coordinator, before they are appended.

Source: ``ReplicaManager.handleProduceAppend``, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.apis.api00_produce._transactional_produce import end_verification, pending_partitions
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.coordinator.transaction.add_partitions_to_txn import (
    AddPartitionsToTxnManager,
    PartitionErrors,
    TransactionPartitions,
)
from kbroker.network.processor._inbound import InboundRequest

logger = get_logger(__name__)

FIRST_ADDING_VERSION = 12


class TransactionVerifier:
    """Verifier of Produce requests whose transactions are not open in all their partitions yet.

    Args: ``manager`` is called for each request; ``hand_over`` passes the request to the native handlers.
    Threads: any.
    """

    def __init__(
        self, manager: Callable[[], AddPartitionsToTxnManager], hand_over: Callable[[InboundRequest], None]
    ) -> None:
        self._manager = manager
        self._hand_over = hand_over

    def take(self, request: InboundRequest) -> bool:
        """Take over a Produce with pending verifications; return False for any other request."""
        pending = pending_partitions(request)
        if pending is None:
            return False

        def settle(errors: PartitionErrors) -> None:
            end_verification(request, {place: int(error) for place, error in errors.items()})
            self._hand_over(request)

        def again() -> TransactionPartitions:
            """Begin the verification again, since a marker of the previous transaction may have ended it."""
            later = pending_partitions(request)
            assert later is not None
            return later

        try:
            manager = self._manager()
        except KafkaError as error:
            settle(dict.fromkeys(pending.places, error.error))
        except Exception:
            logger.exception("cannot verify the transaction of %r", pending.transactional_id)
            settle(dict.fromkeys(pending.places, Errors.UNKNOWN_SERVER_ERROR))
        else:
            if request.api_version >= FIRST_ADDING_VERSION:
                manager.add(pending, settle, again)
            else:
                settle(manager.verify(pending))
        return True
