"""Asks the transaction coordinator about the transactional batches of a Produce, before they are appended.

Source: ``AddPartitionsToTxnManager``, ``ReplicaManager.handleProduceAppend`` (its retries), KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.log.scheduler import Scheduler
from kbroker.network.processor._inbound import InboundRequest
from kbroker.server.apis.api00_produce._transactional_produce import Question, answer, pending_question

logger = get_logger(__name__)

Place = tuple[str, int]
FIRST_ADDING_VERSION = 12


class Transactions(Protocol):
    """What is asked of the transaction coordinator: an error for each (topic, partition)."""

    def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, places: Collection[Place]
    ) -> Mapping[Place, Errors]: ...

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, places: Collection[Place]
    ) -> Mapping[Place, Errors]: ...


class TransactionVerifier:
    """Takes the Produces whose transactions are not yet open in all their partitions, and hands them back answered.

    A transaction that is still ending is asked about again, as long as ``retry_max_ms`` allows: no thread waits for it.

    Args: ``coordinator`` is asked at each request; ``retry_ms`` between two questions; ``hand_over`` gives the request
    to the native handlers.
    Threads: any.
    """

    def __init__(
        self,
        coordinator: Callable[[], Transactions],
        clock: BaseClock,
        scheduler: Scheduler,
        hand_over: Callable[[InboundRequest], None],
        *,
        retry_ms: int,
        retry_max_ms: int,
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._scheduler = scheduler
        self._hand_over = hand_over
        self._retry_ms = retry_ms
        self._retry_max_ms = retry_max_ms

    def take(self, request: InboundRequest) -> bool:
        """Take over a Produce with a pending question; False for any other request, which is left alone."""
        question = pending_question(request)
        if question is None:
            return False
        self._settle(request, question, self._clock.now_ms())
        return True

    def _settle(self, request: InboundRequest, question: Question, began_ms: int) -> None:
        adds = request.api_version >= FIRST_ADDING_VERSION
        errors = self._ask(question, adds)
        is_busy = adds and any(error == Errors.CONCURRENT_TRANSACTIONS for error in errors.values())
        if is_busy and self._clock.now_ms() - began_ms < self._retry_max_ms and self._retry(request, began_ms):
            return
        answer(request, {place: int(error) for place, error in errors.items()})
        self._hand_over(request)

    def _retry(self, request: InboundRequest, began_ms: int) -> bool:
        try:
            self._scheduler.schedule(
                "retry-add-partitions-to-txn", lambda: self._ask_again(request, began_ms), delay_ms=self._retry_ms
            )
        except RuntimeError:  # the broker stops
            return False
        return True

    def _ask_again(self, request: InboundRequest, began_ms: int) -> None:
        question = pending_question(request)
        assert question is not None
        self._settle(request, question, began_ms)

    def _ask(self, question: Question, adds: bool) -> Mapping[Place, Errors]:
        if not question.places:
            return {}
        try:
            transactions = self._coordinator()
            ask = transactions.add_partitions if adds else transactions.verify_partitions
            return ask(question.transactional_id, question.producer_id, question.producer_epoch, question.places)
        except KafkaError as error:
            return dict.fromkeys(question.places, error.error)
        except Exception:
            logger.exception("cannot verify the transaction of %r", question.transactional_id)
            return dict.fromkeys(question.places, Errors.UNKNOWN_SERVER_ERROR)
