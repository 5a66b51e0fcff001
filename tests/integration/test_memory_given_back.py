"""What hostile clients made the broker hold is given back to the system when they have left."""

import struct
import sys
import time
from collections.abc import Callable

import pytest

from tests.support import hostile, wire
from tests.support.broker import BrokerProcess, rss_bytes, wait_for

MIB = 1 << 20
KEPT_BYTES = 8 * MIB
SIZES = (30_000, 128 << 10, 500_000, 900_000, 2_000_000)
TOPIC = "t"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc; the allocator is glibc's")


@pytest.mark.slow
def test_memory_comes_back_after_a_hostile_battery(start_broker: Callable[..., BrokerProcess]) -> None:
    """Two hundred half requests of each size left up to 84 MiB in the allocator's arenas, until the broker ended."""
    broker = start_broker(socket__listen__backlog__size="1024")
    with wire.crowd(broker.bootstrap, 200) as clients:
        assert wire.first_topic_error(clients[0].ask(wire.create_topic(TOPIC, 1))) == 0
        before = rss_bytes(broker.pid)
        highest = before
    for size in SIZES:
        with wire.crowd(broker.bootstrap, 200) as clients:
            for client in clients:
                client.send_raw(struct.pack(">i", size) + bytes(size // 2))
            time.sleep(0.3)  # some of it may still be on its way, which is no harm
            highest = max(highest, rss_bytes(broker.pid))
    for frame in hostile.sizes() + hostile.headers():
        with wire.Connection(broker.bootstrap) as client:
            client.send_raw(frame.data)
    assert highest > before + 5 * KEPT_BYTES, "the battery made the broker hold nothing"
    # it looks every five seconds, and every minute where the memory is taken again at once
    wait_for("memory is given back", lambda: rss_bytes(broker.pid) <= before + KEPT_BYTES, 90, every=0.5)
    assert wire.responses(broker.bootstrap)
