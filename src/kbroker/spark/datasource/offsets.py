"""The offset of a stream as Spark keeps it in the checkpoint.

It is the JSON of the official connector, one object per topic with the next offset of each partition, and has two more
entries, which cannot be names of topics. ``#topicIds`` distinguishes a topic from another of the same name. ``#start``,
in the offset that ends the first batch, is the start of that batch: the entry that Spark writes before it runs the
batch therefore also fixes "latest", and when the first batch fails, the restart begins at the same offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kbroker.common.topic_names import TopicPartition
from kbroker.spark.errors import PipelineError

TOPIC_IDS, START, INITIAL = "#topicIds", "#start", "#initial"
INITIAL_OFFSET = {INITIAL: True}  # offset before the first batch, when no offset has been looked up


@dataclass(frozen=True)
class SourceOffset:
    """Next offsets by partition, known ids of their topics, and the start of the first batch."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    start: SourceOffset | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a sorted object: Spark compares offsets as text, so the same content must give the same text."""
        found: dict[str, Any] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        if self.topic_ids:
            found[TOPIC_IDS] = {topic: str(topic_id) for topic, topic_id in sorted(self.topic_ids.items())}
        if self.start is not None:
            found[START] = self.start.to_json()
        return found

    @classmethod
    def from_json(cls, found: object) -> SourceOffset:
        """Read an offset of ``to_json`` or of the official connector.

        Raises: PipelineError for an offset of any other source.
        """
        try:
            return cls._parse(found)
        except (TypeError, ValueError, AttributeError):
            raise PipelineError(
                f"the checkpoint holds the offset {_shortened(found)}, which is not of this source: it belongs to "
                "another query; give this one a separate checkpointLocation"
            ) from None

    @classmethod
    def _parse(cls, found: Any) -> SourceOffset:
        offsets: dict[TopicPartition, int] = {}
        topic_ids = {topic: UUID(text) for topic, text in found.get(TOPIC_IDS, {}).items()}
        start = cls._parse(found[START]) if START in found else None
        for topic, partitions in found.items():
            if topic in (TOPIC_IDS, START):
                continue
            for partition, offset in partitions.items():
                if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                    raise ValueError(offset)
                offsets[topic, int(partition)] = offset
        return cls(offsets, topic_ids, start)


def is_initial(found: object) -> bool:
    """Return whether an offset is INITIAL_OFFSET."""
    return isinstance(found, dict) and INITIAL in found


def _shortened(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 100 else text[:100] + "..."
