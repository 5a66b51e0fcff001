"""The offsets of a stream's batches, even across deleted and recreated topics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from kbroker.common.topic_names import TopicPartition
from kbroker.spark.datasource.offset_lookup import Found, Lookup, listed
from kbroker.spark.datasource.offsets import SourceOffset
from kbroker.spark.datasource.options import KEEP_ON, ReadOptions
from kbroker.spark.datasource.planning import OffsetRange, limited, limited_by_time
from kbroker.spark.errors import PipelineError

_log = logging.getLogger(__name__)

LATE_ASKS, LATE_WAIT_S = 3, 0.1  # a new leader may return an earlier end for a moment


class StreamProgress:
    """Choice of the offsets of batches, from the facts of a `Lookup`.

    Args:
        lookup: look-up of the topics that are read.
        options: limits, and the reaction to lost data.

    Raises: PipelineError for lost data, and for topics that do not exist.

    Threads: as its Lookup.
    """

    def __init__(self, lookup: Lookup, options: ReadOptions) -> None:
        self.lookup = lookup
        self._options = options
        self._begin: SourceOffset | None = None
        self._moved_at_s: float | None = None
        self._target: Found | None = None
        self._cut_ms = 0  # time at the end of the last batch that was limited by time

    def begin(self) -> SourceOffset:
        """Return the start of a new query, which is looked up once. Raises: PipelineError for a missing topic."""
        if self._begin is None:
            partitions = self.lookup.partitions()
            missing = self.lookup.missing()
            if missing:
                raise PipelineError(f"topic {missing[0]!r} does not exist")
            offsets = self.lookup.resolve(self._options.start, partitions)
            self._begin = SourceOffset(offsets, self.lookup.topic_ids())
        return self._begin

    def stop_at_now(self) -> None:
        """Stop at the current end offsets (the trigger availableNow)."""
        self._target = self.lookup.ends(fresh=True)

    def next_end(self, last: SourceOffset | None, *, all_there_is: bool = False) -> SourceOffset:
        """Return the end of the next batch within the limits; `last` when there is nothing new.

        Args:
            last: end of the previous batch; None for the first batch, whose start is then part of the result.
            all_there_is: ignore the limits (the trigger once).
        """
        start = self.begin() if last is None else last
        ends = self._ends(start)
        begins = self.begins(start, ends)
        until = {tp: max(end, begins[tp]) for tp, end in ends.offsets.items()}
        if not all_there_is:
            until = self._limited(begins, until)
        end = SourceOffset(until, ends.topic_ids, start if last is None else None)
        if last is not None and end == replace(last, start=None):
            return last
        return end

    def ranges(self, start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
        """Return the range of a batch in each partition."""
        begins = self.begins(start, Found(end.topic_ids, end.offsets))
        return [
            OffsetRange(*tp, begins[tp], max(begins[tp], until), end.topic_ids.get(tp[0]))
            for tp, until in sorted(end.offsets.items())
        ]

    def begins(self, start: SourceOffset, ends: Found) -> dict[TopicPartition, int]:
        """Return the start of each partition of `ends`; new partitions and new topics start at their beginning.

        A topic with another id is another topic. Deleted partitions, and logs that have become shorter, are lost data.
        """
        self._check_same_query(start, ends)
        found: dict[TopicPartition, int] = {}
        for tp, end in ends.offsets.items():
            topic = tp[0]
            if tp not in start.offsets:
                continue
            before, now = start.topic_ids.get(topic), ends.topic_ids.get(topic)
            if before is not None and now is not None and before != now:
                self._lost(_replaced(topic, before, now))
            elif start.offsets[tp] > end:
                self._lost(
                    f"partition {topic}-{tp[1]} ends at {end}, but was read until {start.offsets[tp]}: the log was "
                    "truncated, or this is another cluster than the checkpoint's"
                )
                found[tp] = end
            else:
                found[tp] = start.offsets[tp]
        gone = sorted(set(start.offsets) - set(ends.offsets))
        if gone:
            self._lost(f"partitions {listed(gone)} are missing: deleted, or no longer chosen by the options")
        new = [tp for tp in ends.offsets if tp not in found]
        return {**found, **(self.lookup.earliest(new) if new else {})}

    def _ends(self, start: SourceOffset) -> Found:
        ends = self._target
        if ends is None:
            ends = self.lookup.ends()
            for _ in range(LATE_ASKS):
                if not _is_behind(ends, start):
                    break
                self.lookup.cluster.sleep(LATE_WAIT_S)
                ends = self.lookup.ends(fresh=True)
            return ends
        # a batch that was planned before a restart may end beyond the target
        later = {
            tp: max(end, start.offsets.get(tp, 0)) if _same_topic(tp[0], ends, start) else end
            for tp, end in ends.offsets.items()
        }
        return Found(ends.topic_ids, later)

    def _limited(
        self, begins: Mapping[TopicPartition, int], until: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        options = self._options
        if options.min_offsets is not None and self._target is None:
            now_s = self.lookup.cluster.clock()
            if self._moved_at_s is None:
                self._moved_at_s = now_s
            there = sum(end - begins[tp] for tp, end in until.items())
            if there < options.min_offsets and now_s - self._moved_at_s < options.max_delay_s:
                return dict(begins)
            self._moved_at_s = now_s
        if options.max_offsets is None:
            return until
        if not options.max_offsets_by_time or sum(until.values()) - sum(begins.values()) <= options.max_offsets:
            return limited(options.max_offsets, begins, until)

        def ends_at(time_ms: int) -> dict[TopicPartition, int]:
            at = self.lookup.at_time(until, time_ms)
            return {tp: end if at[tp] < 0 else min(end, max(begins[tp], at[tp])) for tp, end in until.items()}

        found, self._cut_ms = limited_by_time(options.max_offsets, begins, until, ends_at, self._cut_ms)
        return found

    def _check_same_query(self, start: SourceOffset, ends: Found) -> None:
        before = {topic for topic, _ in start.offsets}
        now = {topic for topic, _ in ends.offsets}
        if before and now and not before & now:
            raise PipelineError(
                f"the checkpoint is of a query over {', '.join(sorted(before))}, this one reads "
                f"{', '.join(sorted(now))}: give it a separate checkpointLocation"
            )

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise PipelineError(f"{what}; {KEEP_ON}, or give the query a new checkpointLocation")
        _log.warning("%s", what)


def _same_topic(topic: str, ends: Found, start: SourceOffset) -> bool:
    return ends.topic_ids.get(topic) == start.topic_ids.get(topic)


def _is_behind(ends: Found, start: SourceOffset) -> bool:
    """Return whether a log of the same topic seems to end before the offsets that were read."""
    return any(start.offsets.get(tp, 0) > end and _same_topic(tp[0], ends, start) for tp, end in ends.offsets.items())


def _replaced(topic: str, before: UUID, now: UUID) -> str:
    return (
        f"topic {topic!r} is not the one that was read so far (its id was {before} and is {now}): it was deleted and "
        "created again, or this is another cluster than the checkpoint's"
    )
