"""Producer ids of this broker, from blocks allocated in the metadata log. Source: ``ProducerIdManager``."""

from __future__ import annotations

import threading

from kbroker.metadata.controller import Controller
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record

PRODUCER_ID_BLOCK = 1000


class ProducerIds:
    """Unused producer ids. Threads: any. Lock: its own, then the controller's."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._lock = threading.Lock()
        self._next = self._end = 0
        self._block_end = 0  # end of the planned block

    def next(self) -> int:
        """Return an unused id; its block was stored before, so that no id is returned again after a crash."""
        with self._lock:
            if self._next >= self._end:
                self._controller.change(self._next_block, frees_space=True)
                self._end = self._block_end
                self._next = self._end - PRODUCER_ID_BLOCK
            self._next += 1
            return self._next - 1

    def _next_block(self, image: MetadataImage) -> list[MetadataRecord]:
        self._block_end = max(image.next_producer_id, 0) + PRODUCER_ID_BLOCK
        node_id = self._controller.node_id
        broker = image.brokers.get(node_id)
        epoch = -1 if broker is None else broker.epoch
        body = {"BrokerId": node_id, "BrokerEpoch": epoch, "NextProducerId": self._block_end}
        return [metadata_record("ProducerIdsRecord", body)]
