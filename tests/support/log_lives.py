"""Random lives of one partition's log in which system calls fail, compared with the acknowledged batches.

    python -m tests.support.log_lives PLACE CONTROL FIRST COUNT

PLACE is a folder for the logs; CONTROL is the control file of `disk_calls.py`, whose library is preloaded. The seeds of
the lives are FIRST to FIRST + COUNT - 1. The output is a JSON object: the number of failed calls, and the violated
promise and last steps of each life that broke one.
"""

from __future__ import annotations

import errno
import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.log._partition_log import PartitionLog, active_producers
from kbroker.protocol.records import RecordBatch, iter_batches
from tests.support.disk_calls import ALWAYS, CALLS, FAIL, SHORT, Control
from tests.support.log_files import NOW_MS, TOPIC_ID, batch, read_all

PASSING = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EACCES)
IDEMPOTENT, TRANSACTIONAL = (1, 2), (3, 4)
ATTEMPTS = 6


class Producer:
    """State of a client: its next sequence, and whether its transaction is open."""

    def __init__(self) -> None:
        self.epoch = self.sequence = 0
        self.is_open = False


class Life:
    """Life of one log. Args: ``folder``: parent folder of the partition's."""

    def __init__(self, folder: Path, control: Control, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.folder, self.control = folder / "t-0", control
        self.config = {
            "segment.bytes": rng.choice([600, 2000, 1 << 20]),
            "index.interval.bytes": rng.choice([0, 200, 4096]),
            "flush.messages": rng.choice([1, 3, 1 << 40]),
        }
        self.steps: list[object] = [self.config]
        self.acked: dict[int, tuple[int, int, int, int]] = {}  # last offset, producer id, epoch, sequence by base
        self.producers = {one: Producer() for one in IDEMPOTENT + TRANSACTIONAL}
        self.failed = self.start = self.flushed = 0
        self.log = self.opened(clean=True)

    def live(self) -> None:
        for _ in range(self.rng.randrange(5, 60)):
            kinds = (
                self.write,
                self.end,
                self.roll,
                self.flush,
                self.reopen,
                self.delete,
                self.raise_epoch,
                self.check,
            )
            self.rng.choices(kinds, (16, 4, 2, 2, 2, 1, 1, 1))[0]()
        self.check()
        known = self.state()
        self.reopen(clean=False)
        self.check()
        if self.start == 0:  # only the batches are left after this
            self.log.close(clean=False)
            for name in (*self.folder.glob("*.snapshot"), *self.folder.glob("*index")):
                name.unlink()
            self.log = self.opened(clean=False)
            self.check()
            assert self.state() == known
        self.log.close(clean=False)

    def state(self) -> list[tuple[int, int, int]]:
        return sorted((one.producer_id, one.producer_epoch, one.last_sequence) for one in active_producers(self.log))

    def failing(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call, or an OSError that it raises; system calls may fail during the call."""
        armed: tuple[object, ...] = ()
        if self.rng.random() < 0.35:
            calls = tuple(self.rng.sample(list(CALLS), self.rng.choice([1, 1, 2, len(CALLS)])))
            is_interrupted, is_short = self.rng.random() < 0.1, "write" in calls and self.rng.random() < 0.3
            error = errno.EINTR if is_interrupted else self.rng.choice(PASSING)
            armed = calls, errno.errorcode[error], self.rng.randrange(1, 5), 1 if is_interrupted else ALWAYS
            if self.rng.random() < 0.6:
                armed = (*armed[:3], self.rng.choice([1, 2]))
            self.control.set(
                calls=calls, action=SHORT if is_short else FAIL, error=error, first=armed[2], times=armed[3]
            )
        try:
            result = call()
        except (OSError, MemoryError) as failure:
            result = failure
        if armed:
            self.failed += self.control.failed
            self.control.set()
        self.steps.append((call.__qualname__.split(".")[-1], repr(result), armed))
        return result

    def opened(self, clean: bool) -> PartitionLog:
        return PartitionLog(
            self.folder, "t", 0, TOPIC_ID, self.config, VirtualClock(NOW_MS), clean=clean,
            recovery_point=self.flushed, log_start_offset=self.start,
        )  # fmt: skip

    def reopen(self, clean: bool | None = None) -> None:
        clean = self.rng.random() < 0.5 if clean is None else clean
        is_closed = self.failing(lambda: self.log.close(clean)) is None
        opened = self.failing(lambda: self.opened(clean and is_closed and not self.log.is_failed))
        attempts = 0
        while not isinstance(opened, PartitionLog):
            attempts += 1
            opened = self.failing(lambda: self.opened(clean=False)) if attempts < ATTEMPTS else self.opened(clean=False)
        self.log = opened
        self.steps.append(("opened", opened.log_end_offset, opened.damage, opened.cut))

    def append(self, write: Callable[[], Any]) -> Any:
        """Return the result of an append that is repeated after failures of the storage."""
        for _ in range(ATTEMPTS):
            info = self.failing(write)
            if info.error != Errors.KAFKA_STORAGE_ERROR:
                break
            if self.log.is_failed or self.rng.random() < 0.2:
                self.reopen(clean=False)
        return info

    def write(self) -> None:
        producer_id = self.rng.choice([-1, *self.producers])
        producer = self.producers.get(producer_id, Producer())
        count, size_bytes = self.rng.choice([1, 1, 2, 5]), self.rng.choice([1, 100])
        facts: dict[str, Any] = {}
        if producer_id >= 0:
            facts = {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "base_sequence": producer.sequence,
                "transactional": producer_id in TRANSACTIONAL,
            }
        data = batch(*[b"x" * size_bytes] * count, **facts)

        def write() -> Any:
            guard = -1
            if producer_id in TRANSACTIONAL:
                error, guard = self.log.start_verification(producer_id, producer.epoch, producer.sequence)
                assert error == 0
            return self.log.append(data, verification_guard=guard)

        info = self.append(write)
        if info.error == 0:
            epoch, sequence = (producer.epoch, producer.sequence) if facts else (-1, -1)
            self.acked[info.base_offset] = info.base_offset + count - 1, producer_id, epoch, sequence
            producer.sequence += count
            producer.is_open = producer_id in TRANSACTIONAL
        elif info.error != Errors.OUT_OF_ORDER_SEQUENCE_NUMBER or self.start == 0:  # else its last batch is deleted
            assert info.error in (Errors.RECORD_LIST_TOO_LARGE, Errors.KAFKA_STORAGE_ERROR), info

    def end(self) -> None:
        producer_id = self.rng.choice(TRANSACTIONAL)
        producer = self.producers[producer_id]
        if not producer.is_open:
            return
        version, is_commit = self.rng.choice([0, 2]), self.rng.random() < 0.5
        epoch = producer.epoch + version // 2
        info = self.append(
            lambda: self.log.append_end_marker(producer_id, epoch, 0, is_commit, transaction_version=version)
        )
        if info.error == 0:
            self.acked[info.base_offset] = info.base_offset, producer_id, epoch, -1
            producer.is_open = False
            if version == 2:
                producer.epoch, producer.sequence = epoch, 0

    def roll(self) -> None:
        self.failing(self.log.roll)

    def flush(self) -> None:
        flushed = self.failing(self.log.flush)
        if isinstance(flushed, int):
            self.flushed = flushed
        elif self.log.is_failed:
            self.reopen(clean=False)

    def delete(self) -> None:
        if self.rng.random() < 0.3:
            offset = self.rng.randrange(self.start, self.log.high_watermark + 1)
            self.failing(lambda: self.log.delete_records(offset))
            self.start = self.log.log_start_offset
        self.failing(lambda: self.log.apply_retention(NOW_MS))
        self.failing(lambda: self.log.purge_deleted(NOW_MS + (1 << 40)))

    def raise_epoch(self) -> None:
        self.log.set_leader_epoch(self.log.leader_epoch + 1)

    def check(self) -> None:
        """Compare the log with the acknowledged batches, and the producers with their last batches."""
        self.flushed = self.log.flush()
        found: dict[int, RecordBatch] = {}
        expected = self.start
        for one in iter_batches(b"".join(read_all(self.log))):
            found[one.base_offset] = one
            assert one.base_offset == expected or one.base_offset < self.start, (one.base_offset, expected)
            expected = one.last_offset + 1
        assert (self.log.damage, expected) == (None, self.log.log_end_offset)
        for base, row in self.acked.items():
            if row[0] >= self.start:
                one = found[base]
                assert (one.last_offset, one.producer_id, one.producer_epoch, one.base_sequence) == row
        if self.start == 0:
            self.check_producers(list(found.values()))

    def check_producers(self, batches: list[RecordBatch]) -> None:
        last: dict[int, tuple[int, int]] = {}
        for one in batches:
            epoch, sequence = last.get(one.producer_id, (one.producer_epoch, -1))
            sequence = sequence if epoch == one.producer_epoch else -1
            if one.base_sequence >= 0:
                assert one.base_sequence == sequence + 1
                sequence += one.last_offset - one.base_offset + 1
            last[one.producer_id] = one.producer_epoch, sequence
        last.pop(-1, None)
        assert self.state() == sorted((one, *row) for one, row in last.items())


def main(place: str, control_file: str, first: str, count: str) -> None:
    folder, control = Path(place), Control(Path(control_file))
    failed, broken = 0, {}
    for seed in range(int(first), int(first) + int(count)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        control.set(root=folder)
        life = Life(folder, control, seed)
        try:
            life.live()
        except Exception as problem:
            broken[seed] = [repr(problem), *map(str, life.steps[-12:])]
        failed += life.failed
    json.dump({"failed": failed, "broken": broken}, sys.stdout, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
