from kbroker.coordinator.transaction.add_partitions_to_txn import TransactionPartitions
from kbroker.network.processor._inbound import InboundRequest

def pending_partitions(request: InboundRequest) -> TransactionPartitions | None:
    """Return the partitions to verify before the request's records are appended, or None if there are none.

    Another call begins their verification again; a result without places means that all are verified by now.
    Threads: the one that owns the request. Raises: ValueError after its response.
    """

def end_verification(request: InboundRequest, errors: dict[tuple[str, int], int]) -> None:
    """Set the coordinator's error code for each place, 0: in the transaction. Missing places stay unverified.

    The request is then passed to the native handlers, which append. Raises: ValueError after its response.
    """
