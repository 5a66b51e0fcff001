"""The image of a member: it follows the records of the controllers, and changes nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from kbroker.common.errors import Errors, KafkaError
from kbroker.member.follower_log import FollowerLog
from kbroker.metadata.controller import Controller, Plan, Publisher
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.records.metadata_record import MetadataRecord


class _RemoteStorage:
    """The log of a follower, to which a node itself appends nothing."""

    def __init__(self, log: FollowerLog) -> None:
        self._log = log
        self.kraft_version = 0

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def epoch(self) -> int:
        return self._log.last_epoch

    def append(self, records: Sequence[MetadataRecord], level: int, *, frees_space: bool) -> None:
        raise _refusal()

    def flush(self) -> None:
        pass


class RemoteMetadata(Controller):
    """The metadata of a cluster that other controllers keep. Threads: as `Controller`."""

    is_active = False

    def __init__(self, node_id: int, cluster_id: str, directory_id: UUID, log: FollowerLog) -> None:
        self._remote = _RemoteStorage(log)
        super().__init__(node_id, cluster_id, self._remote)
        self.directory_id = directory_id

    def note_kraft_version(self, level: int) -> None:
        """Set the level of kraft.version, which control records have."""
        self._remote.kraft_version = level

    def reset_image(self, image: MetadataImage) -> None:
        """Set the image before there are publishers."""
        self._image = image

    def change(self, plan: Plan, *, publisher: Publisher | None = None, frees_space: bool = False) -> None:
        """Refuse the change. Raises: KafkaError NOT_CONTROLLER."""
        raise _refusal()


def _refusal() -> KafkaError:
    return KafkaError(Errors.NOT_CONTROLLER, "This broker is not the controller of its cluster.")
