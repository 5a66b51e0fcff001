from kbroker.log._partition_log import PartitionLog
from kbroker.log.log_types import ActiveProducer

def active_producers(log: PartitionLog) -> list[ActiveProducer]:
    """The producers that are not expired, by id. Threads: any; takes the partition's append lock for a copy."""
