"""Errors of replaying records into an image, and of writing an image as records."""

from __future__ import annotations

from kbroker.common.errors import UserError
from kbroker.metadata.records.metadata_record import UnknownRecordError


class MetadataReplayError(Exception):
    """Record that contradicts the image before it, or has a value that no image can hold."""


class UnsupportedLevelError(MetadataReplayError, UnknownRecordError):
    """Level of metadata.version that this version of kbroker does not support."""


class UnwritableMetadataError(UserError):
    """Metadata that records of a level of metadata.version cannot represent."""

    def __init__(self, level: int, loss: str) -> None:
        super().__init__(
            f"metadata.version {level} cannot represent {loss}: expected a higher metadata.version, or a cluster "
            f"without them"
        )
