"""The image of a member: it follows the records of the controllers, and changes nothing itself."""

from __future__ import annotations

from uuid import UUID

from kbroker.common.errors import Errors, KafkaError
from kbroker.member.follower_log import FollowerLog
from kbroker.metadata.controller import Controller, Plan, Publisher
from kbroker.metadata.image.image import MetadataImage


class RemoteMetadata(Controller):
    """The metadata of a cluster that other controllers keep, in the log of a follower. Threads: as `Controller`."""

    is_active = False
    kraft_version = 0  # as in the last control record

    def __init__(self, node_id: int, cluster_id: str, directory_id: UUID, log: FollowerLog) -> None:
        super().__init__(node_id, cluster_id)
        self.directory_id = directory_id
        self._log = log

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        return self._log.end_offset

    @property
    def epoch(self) -> int:
        """Leader epoch of the last record."""
        return self._log.last_epoch

    def reset_image(self, image: MetadataImage) -> None:
        """Set the image before there are publishers."""
        self._image = image

    def change(self, plan: Plan, *, publisher: Publisher | None = None, frees_space: bool = False) -> None:
        """Refuse the change. Raises: KafkaError NOT_CONTROLLER."""
        raise KafkaError(Errors.NOT_CONTROLLER, "This broker is not the controller of its cluster.")
