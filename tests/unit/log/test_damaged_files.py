"""Files of a partition truncated to many lengths and with single flipped bits, after a clean stop and a kill.

No wrong record is served, damage is reported by the log or its verification, and a file that can be rebuilt from the
batches loses nothing.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.log._partition_log import PartitionLog, active_producers
from kbroker.log.log_types import AbortedTransaction, ActiveProducer
from kbroker.log.tools.verify import verify
from kbroker.protocol.batch_format import BATCH_HEADER_BYTES
from tests.support.closing import scope
from tests.support.log_files import base_of, batch, crc_ok, open_log, read_all

CONFIG: dict[str, object] = {"segment.bytes": 1500, "index.interval.bytes": 150, "cleanup.policy": "delete"}
TAIL, RANDOM_CUTS = 200, 200
SAMPLED = 8  # every eighth length, except in a soak
FLIPS, SOAK_FLIPS = 40, 10_000
#: Kinds of files; only segments cannot be rebuilt from other files.
KINDS = (
    "active.log", "sealed.log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint",
    "txnindex-checkpoint", "partition.metadata",
)  # fmt: skip


class Partition(NamedTuple):
    """Folder of a partition, and the contents that a start must find."""

    folder: Path
    batches: list[bytes]
    aborted: list[list[AbortedTransaction]]
    producers: list[ActiveProducer]
    recovery_point: int

    def files(self, kind: str) -> list[Path]:
        """Return the files of a kind that have content."""
        segments = sorted(self.folder.glob("*.log"))
        if kind == "active.log":
            return segments[-1:]
        if kind == "sealed.log":
            return segments[:-1]
        return [path for path in sorted(self.folder.iterdir()) if path.name.endswith(kind) and path.stat().st_size]

    def open(self, folder: Path, *, is_clean: bool) -> PartitionLog:
        return open_log(folder, config=CONFIG, clean=is_clean, recovery_point=self.recovery_point)


def aborted_of(log: PartitionLog, batches: list[bytes]) -> list[list[AbortedTransaction]]:
    return [list(log.read(base_of(one), isolation=1).aborted) for one in batches]


def fill(folder: Path, *, is_clean: bool) -> Partition:
    """Return a partition of several segments with plain, idempotent and transactional batches, aborted ones too."""
    log = open_log(folder, config=CONFIG, leader_epoch=3)
    recovery_point = 0
    for number in range(24):
        assert log.append(batch(b"%04d" % number * (1 + number % 5))).error == 0
        assert log.append(batch(b"once", producer_id=5, producer_epoch=0, base_sequence=number)).error == 0
        if number % 4 == 0:
            error, guard = log.start_verification(7, 0, number // 4)
            assert error == 0
            data = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=number // 4, transactional=True)
            assert log.append(data, verification_guard=guard).error == 0
            assert log.append_end_marker(7, 0, 0, number % 8 == 0).error == 0
        if number == 12:
            recovery_point = log.flush()
    batches, producers = read_all(log), active_producers(log)
    aborted = aborted_of(log, batches)
    assert len(log.segments()) > 3
    assert any(aborted)
    if is_clean:
        log.close(clean=True)
        recovery_point = log.log_end_offset
    kept = folder.with_name(folder.name + "-kept")
    shutil.copytree(folder, kept)
    log.close(clean=False)
    return Partition(kept, batches, aborted, producers, recovery_point)


@pytest.fixture(scope="module", params=[True, False], ids=["stopped", "killed"])
def partition(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Partition, bool]:
    return fill(tmp_path_factory.mktemp("partition") / "t-0", is_clean=request.param), request.param


def judge(made: Partition, folder: Path, kind: str, *, is_clean: bool) -> str:
    """Return the error of a start on a damaged folder, or ""."""
    try:
        log = made.open(folder, is_clean=is_clean)
    except (ValueError, OSError) as error:
        is_refused = kind == "partition.metadata" and str(folder) in str(error)
        return "" if is_refused else f"the log cannot be opened: {error!r}"
    try:
        served = read_all(log)
        whole = [one for one in served if len(one) >= BATCH_HEADER_BYTES and crc_ok(one) and one[16] == 2]
        by_content = [one[16:] for one in made.batches]
        if any(one[16:] not in by_content for one in whole):
            return "a wrong record is served"
        is_complete = [one[16:] for one in whole] == by_content
        if kind == "active.log" and b"".join(made.batches).endswith(_rest(made, folder)):
            return ""  # the high watermarks report whole batches missing at the end, see test_lost_offsets.py
        if kind.endswith(".log"):
            is_named = log.damage is not None or log.cut is not None
            return "" if is_complete or is_named or verify(folder) else "records are missing without a report"
        if not is_complete:
            return f"{len(whole)} of {len(by_content)} batches are served"
        if aborted_of(log, made.batches) != made.aborted:
            return "other transactions are aborted"
        return "" if active_producers(log) == made.producers else "the producers differ"
    finally:
        log.close(clean=False)


def _rest(made: Partition, folder: Path) -> bytes:
    """Return the bytes missing at the end of the active segment, or b"damaged" if other bytes differ."""
    name = made.files("active.log")[0].name
    before, now = (made.folder / name).read_bytes(), (folder / name).read_bytes()
    is_cut = before.startswith(now) and any(
        before[len(now) :] == b"".join(made.batches[i:]) for i in range(len(made.batches))
    )
    return before[len(now) :] if is_cut else b"damaged"


def damaged(made: Partition, kind: str, *, soak: bool) -> Iterator[tuple[Path, str, bytes]]:
    """Yield the path, the damage and the content of each damaged file of a kind."""
    rng = random.Random(28)
    files = made.files(kind)
    for path in files:
        data = path.read_bytes()
        lengths = {max(0, len(data) - cut) for cut in range(1, TAIL + 1)}
        lengths |= {rng.randrange(len(data)) for _ in range(RANDOM_CUTS)}
        for size in sorted(lengths)[:: 1 if soak else SAMPLED] if path in (files[0], files[-1]) else ():
            yield path, f"cut at {size}", data[:size]
    for _ in range(SOAK_FLIPS if soak else FLIPS):
        path = rng.choice(files)
        content = bytearray(path.read_bytes())
        at = rng.randrange(len(content))
        content[at] ^= 1 << rng.randrange(8)
        yield path, f"a bit of byte {at}", bytes(content)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file(partition: tuple[Partition, bool], kind: str, tmp_path: Path, soak: bool) -> None:
    made, is_clean = partition
    assert made.files(kind), "no file of this kind has content"
    folder, wrong, tried = tmp_path / "t-0", list[str](), 0
    for path, what, content in damaged(made, kind, soak=soak):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made.folder, folder, copy_function=shutil.copyfile)
        (folder / path.name).write_bytes(content)
        with scope():  # a log keeps the maps of its indexes until it is freed
            found = judge(made, folder, kind, is_clean=is_clean)
        tried += 1
        if found:
            wrong.append(f"{path.name}, {what}: {found}")
    print(f"{tried} damaged files")
    assert wrong == []
    assert tried > FLIPS
