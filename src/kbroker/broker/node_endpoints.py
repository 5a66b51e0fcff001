"""Addresses of the nodes in responses about partitions that another node leads (KIP-951)."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Sequence

from kbroker.common.listeners import Listener
from kbroker.handlers._native_apis import NativeApis
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.registrations import BrokerRegistration


class NodeEndpoints:
    """Follower of the metadata that passes the addresses of the nodes to the native handlers. Threads: any."""

    def __init__(self, native_apis: NativeApis, listeners: Sequence[Listener], image: MetadataImage) -> None:
        self.lock = threading.Lock()
        self._native_apis = native_apis
        self._names = [one.name for one in listeners]
        self._set(image)

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether the delta changes the registration of a node."""
        return delta.changes_brokers

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Pass the addresses of the image to the native handlers."""
        self._set(image)

    def _set(self, image: MetadataImage) -> None:
        live = [broker for broker in image.brokers.values() if not broker.is_fenced]
        racks = {broker.broker_id: broker.rack for broker in live if broker.rack}
        self._native_apis.set_nodes([tagged_section(live, name) for name in self._names], racks)


def tagged_section(brokers: Iterable[BrokerRegistration], listener: str) -> bytes:
    """Return the tagged section of a Produce or Fetch response with the nodes that have this listener."""
    rows = []
    for broker in brokers:
        at = broker.listeners.get(listener)
        if at is not None:
            address = struct.pack(">i", broker.broker_id) + _text(at.host) + struct.pack(">i", at.port)
            rows.append(address + _text(broker.rack) + b"\0")
    content = _length(len(rows) + 1) + b"".join(rows)
    return b"\x01\0" + _length(len(content)) + content


def _text(text: str | None) -> bytes:
    data = (text or "").encode()
    return b"\0" if text is None else _length(len(data) + 1) + data


def _length(number: int) -> bytes:
    """Return the number as an unsigned varint."""
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)
    return bytes(data)
