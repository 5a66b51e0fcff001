"""Errors of replaying records into an image, and of writing an image as records."""

from __future__ import annotations


class MetadataReplayError(Exception):
    """Record that contradicts the image before it, or has a value that no image can hold."""


class UnwritableMetadataError(Exception):
    """Metadata that records of a level of metadata.version cannot represent."""

    def __init__(self, level: int, loss: str) -> None:
        super().__init__(
            f"metadata.version {level} cannot represent {loss}: expected a higher metadata.version, or a cluster "
            f"without them"
        )
