"""Producer ids are unique across threads and restarts. A block is stored before its first id is returned."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker.common.errors import KafkaError
from kbroker.metadata.producer_ids import PRODUCER_ID_BLOCK, ProducerIds
from kbroker.metadata.records.metadata_record import metadata_record
from tests.support.metadata import LoggedController, MemoryController, change


def test_a_block_is_stored_before_its_ids() -> None:
    """A block has 1,000 ids, as in Kafka, and is one record."""
    controller = MemoryController()
    ids = ProducerIds(controller)
    assert [ids.next() for _ in range(PRODUCER_ID_BLOCK)] == list(range(PRODUCER_ID_BLOCK))
    (block,) = controller.storage.appended
    body = {"BrokerId": 1, "BrokerEpoch": -1, "NextProducerId": 1000}
    assert block == [metadata_record("ProducerIdsRecord", body)]
    assert ids.next() == 1000
    assert (len(controller.storage.appended), controller.image.next_producer_id) == (2, 2000)


def test_blocks_of_other_nodes_are_skipped() -> None:
    controller = MemoryController()
    body = {"BrokerId": 7, "BrokerEpoch": 5, "NextProducerId": 5000}
    change(controller, metadata_record("ProducerIdsRecord", body))
    assert ProducerIds(controller).next() == 5000


def test_no_id_is_returned_again_after_a_restart(tmp_path: Path) -> None:
    controller = LoggedController(tmp_path)
    assert ProducerIds(controller).next() == 0
    controller.close()
    controller = LoggedController(tmp_path)
    assert ProducerIds(controller).next() == PRODUCER_ID_BLOCK
    controller.close()


def test_a_block_that_cannot_be_stored() -> None:
    """The caller gets the error, and the next attempt returns the same block."""
    controller = MemoryController()
    ids = ProducerIds(controller)
    controller.storage.is_full = True
    with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
        ids.next()
    controller.storage.is_full = False
    assert (ids.next(), controller.image.next_producer_id) == (0, PRODUCER_ID_BLOCK)


def test_two_threads_get_different_ids() -> None:
    ids, found = ProducerIds(MemoryController()), []

    def run(_: int) -> None:
        found.extend([ids.next() for _ in range(3 * PRODUCER_ID_BLOCK)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    assert sorted(found) == list(range(6 * PRODUCER_ID_BLOCK))
