"""Follower of a FakeQuorum on a real disk: observer, log and loader, driven step by step by a test."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.member.follower_log import FollowerLog
from kbroker.member.metadata_loader import MetadataLoader
from kbroker.member.raft_observer import QuorumSettings, RaftObserver
from kbroker.member.remote_metadata import RemoteMetadata
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.log.quorum_state import QuorumState
from tests.support.fake_quorum import CLUSTER_ID, FakeQuorum

NODE_ID = 9


def quorum_settings(quorum: FakeQuorum) -> QuorumSettings:
    """Return the settings of a node that has only the addresses of the controllers."""
    servers = list(quorum.addresses.values())
    return QuorumSettings(NODE_ID, UUID(int=5), CLUSTER_ID, servers, {}, 2000, 20, 2000, 1 << 20, 1 << 20)


class RaftFollower:
    """Node with the folder of its metadata log; `with` starts the node, and ends it as a kill does.

    Attributes:
        faults: reasons why the loading ended.
        states: states written to quorum-state.
    """

    def __init__(self, folder: Path, quorum: FakeQuorum, **settings: object) -> None:
        self.quorum = quorum
        self.clock = VirtualClock()
        self.faults: list[str] = []
        self.states: list[QuorumState] = []
        self.log = FollowerLog(folder, BrokerConfig(settings), self.clock)
        self.metadata = RemoteMetadata(NODE_ID, CLUSTER_ID, UUID(int=5), self.log)
        self.loader = MetadataLoader(self.log, self.metadata, self.faults.append)
        self.observer = RaftObserver(quorum_settings(quorum), self.log, self._write_state, self.loader.load_snapshot)
        self._now_ms = 0

    def _write_state(self, state: QuorumState) -> None:
        self.states.append(state)
        self.log.write_quorum_state(state, 1)

    def __enter__(self) -> RaftFollower:
        self.loader.start()
        self.loader.release()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.loader.close()
        self.observer.close()
        self.log.close()

    def drive(self, steps: int = 8) -> None:
        """Have the quorum serve requests and the loader load the fetched records."""
        self._now_ms = self.quorum.drive(self.observer, steps, self._now_ms)
        self.loader.advance(self.observer.high_watermark)

    def await_image(self, is_expected: Callable[[MetadataImage], bool]) -> MetadataImage:
        """Wait until the loader's thread has made the expected image; return the image."""
        end = time.monotonic() + 10
        while not is_expected(self.metadata.image):
            assert time.monotonic() < end, (self.metadata.image.offset, self.observer.high_watermark, self.faults)
            time.sleep(0.001)
        return self.metadata.image

    def catch_up(self) -> MetadataImage:
        """Fetch until the end of the quorum's log; return the image at its high watermark."""
        for _ in range(100):
            self.drive()
            if (
                self.log.end_offset == self.quorum.end_offset
                and self.observer.high_watermark == self.quorum.high_watermark
            ):
                break
        else:
            raise AssertionError(f"at {self.log.end_offset} of {self.quorum.end_offset}: {self.observer.last_error}")
        return self.await_image(lambda image: image.offset == self.quorum.image().offset)
