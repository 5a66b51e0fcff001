"""Compression codecs of record batches, by their number in the batch attributes and their name in configs."""

import enum


class CompressionType(enum.IntEnum):
    """Codecs; the numbers are bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def config_name(self) -> str:
        """Name in ``compression.type``."""
        return "uncompressed" if self is CompressionType.NONE else self.name.lower()

    @classmethod
    def of_config_name(cls, name: str) -> "CompressionType":
        """Return the codec of a ``compression.type`` value; "none" and "uncompressed" are the same.

        Raises: ValueError: no such codec ("producer" is a policy, not a codec).
        """
        if name == "uncompressed":
            return cls.NONE
        found = cls.__members__.get(name.upper()) if name.islower() else None
        if found is None:
            raise ValueError(f"unknown compression type {name!r}")
        return found
