from kbroker.coordinator.transaction.add_partitions_to_txn import Question
from kbroker.network.processor._inbound import InboundRequest

def pending_question(request: InboundRequest) -> Question | None:
    """What must be asked before the request's records are appended; None: no Produce with a pending question.

    Asking again begins the verification of its partitions anew, as the first time. No places: all are known by now.
    Threads: the one that owns the request. Raises: ValueError when it was answered.
    """

def answer(request: InboundRequest, errors: dict[tuple[str, int], int]) -> None:
    """The coordinator's error code for each place, 0: in the transaction. What is left out stays unverified.

    The request is then handed over to the native handlers, which append. Raises: ValueError when it was answered.
    """
