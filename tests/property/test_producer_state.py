"""The native producer state compared with the same rules over a dict and lists."""

from collections import deque
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.producer_state import ProducerStateManager

MODULUS = 2**31
LARGEST_EPOCH = 2**15 - 1


@dataclass
class Producer:
    epoch: int = -1
    coordinator_epoch: int = -1
    timestamp: int = -1
    txn: int | None = None
    batches: deque[tuple[int, int, int, int, int]] = field(
        default_factory=lambda: deque(maxlen=5)
    )  # (first seq, last seq, first, last, time)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.batches = epoch, deque(maxlen=5)


@dataclass
class Model:
    producers: dict[int, Producer] = field(default_factory=dict)
    ended: list[tuple[int, int]] = field(
        default_factory=list
    )  # (first offset, marker offset) not yet below the high watermark
    verified: dict[int, list[int]] = field(
        default_factory=dict
    )  # pid: [guard, epoch, lowest sequence, bumps epochs, since]

    def verify(self, pid: int, epoch: int, sequence: int, bumps_epochs: bool, guard: int, now: int) -> tuple[int, int]:
        p = self.producers.get(pid) or Producer()
        if epoch < p.epoch:
            return 47, 0
        if p.txn is not None and p.epoch == epoch:
            return 0, 0
        entry = self.verified.setdefault(pid, [guard, epoch, sequence, bumps_epochs, now])
        if epoch == entry[1]:
            entry[2] = min(entry[2], sequence)
        elif epoch > entry[1]:
            entry[1:3] = epoch, sequence
        return 0, entry[0]

    def append(
        self,
        pid: int,
        epoch: int,
        sequence: int,
        offset: int,
        count: int,
        timestamp: int,
        transactional: bool,
        from_client: bool,
        guard: int,
    ) -> tuple[int, int, int]:
        known = self.producers.get(pid)
        p = known or Producer()
        last = (sequence + count - 1) % MODULUS
        if from_client and p.epoch == epoch:
            for first_seq, last_seq, first, _, time in p.batches:
                if (first_seq, last_seq) == (sequence, last):
                    return 0, first, time
        if epoch < p.epoch:
            return 47, -1, -1
        entry = self.verified.get(pid)
        is_open = p.txn is not None and p.epoch == epoch
        if transactional and guard >= 0 and not is_open and (entry is None or entry[0] != guard):
            return 48, -1, -1
        if from_client:
            if entry is not None and (sequence > entry[2] or (entry[3] and sequence != 0 and not p.batches)):
                return 45, -1, -1
            wanted = (p.batches[-1][1] + 1) % MODULUS if p.batches and epoch == p.epoch else 0
            if p.epoch != -1 and sequence != wanted:
                return 45, -1, -1
        if p.txn is not None and not transactional:
            return 48, -1, -1
        self.producers[pid] = p
        if transactional:
            self.verified.pop(pid, None)
        p.set_epoch(epoch)
        p.batches.append((sequence, last, offset, offset + count - 1, timestamp))
        p.timestamp = timestamp
        if transactional and p.txn is None:
            p.txn = offset
        return 0, offset, timestamp

    def end(
        self, pid: int, epoch: int, offset: int, commit: bool, coordinator_epoch: int, timestamp: int, version: int
    ) -> tuple[int, tuple[int, int, int, int] | None]:
        p = self.producers.get(pid) or Producer()
        is_late = version >= 2 and epoch == p.epoch != LARGEST_EPOCH and p.txn is not None
        if epoch < p.epoch or is_late:
            return 47, None
        if coordinator_epoch < p.coordinator_epoch:
            return 52, None
        self.producers[pid] = p
        entry = self.verified.get(pid)
        # with transaction version 2 it belongs to the next transaction; no transaction follows the largest epoch
        if entry is not None and not (entry[3] and entry[1] == epoch and epoch != LARGEST_EPOCH):
            del self.verified[pid]
        p.set_epoch(epoch)
        p.coordinator_epoch, p.timestamp = coordinator_epoch, timestamp
        first, p.txn = p.txn, None
        if first is None:
            return 0, None
        self.ended.append((first, offset))
        stable = min((q.txn for q in self.producers.values() if q.txn is not None), default=offset + 1)
        return 0, None if commit else (pid, first, offset, stable)

    def expire(self, now: int, expiration: int) -> None:
        self.producers = {
            k: p for k, p in self.producers.items() if p.txn is not None or now - p.timestamp < expiration
        }
        self.verified = {k: entry for k, entry in self.verified.items() if now - entry[4] < expiration}

    def first_unstable(self) -> int | None:
        return min(
            [p.txn for p in self.producers.values() if p.txn is not None] + [f for f, _ in self.ended], default=None
        )

    def describe(self) -> list[dict[str, int]]:
        return [
            {
                "producer_id": pid,
                "producer_epoch": p.epoch,
                "coordinator_epoch": p.coordinator_epoch,
                "last_timestamp_ms": p.timestamp,
                "last_sequence": p.batches[-1][1] if p.batches else -1,
                "last_offset": p.batches[-1][3] if p.batches else -1,
                "current_txn_first_offset": -1 if p.txn is None else p.txn,
                "batch_count": len(p.batches),
            }
            for pid, p in sorted(self.producers.items())
        ]


PIDS = st.integers(0, 3)
EPOCHS = st.sampled_from([0, 1, 2, LARGEST_EPOCH])
GUARDS = st.sampled_from(["none", "open", "own", "of another"])
SEQUENCES = st.one_of(st.integers(0, 12), st.integers(MODULUS - 4, MODULUS - 1))
STEPS = st.one_of(
    st.tuples(st.just("next"), PIDS, st.integers(1, 3), st.booleans()),
    st.tuples(st.just("repeat"), PIDS, st.integers(0, 4)),
    st.tuples(st.just("append"), PIDS, EPOCHS, SEQUENCES, st.integers(1, 6), st.booleans(), st.booleans(), GUARDS),
    st.tuples(st.just("verify"), PIDS, EPOCHS, SEQUENCES, st.booleans()),
    st.tuples(st.just("end"), PIDS, EPOCHS, st.booleans(), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("watermark"), st.integers(0, 60)),
    st.tuples(st.just("expire"), st.integers(1, 20)),
    st.tuples(st.just("reload")),
)


def append(
    state: ProducerStateManager,
    model: Model,
    pid: int,
    epoch: int,
    sequence: int,
    offset: int,
    count: int,
    now: int,
    transactional: bool,
    from_client: bool,
    guard: int = -1,
) -> None:
    got = state.append(
        pid, epoch, sequence, offset,
        record_count=count, timestamp_ms=now, transactional=transactional, from_client=from_client, guard=guard,
    )  # fmt: skip
    assert got == model.append(pid, epoch, sequence, offset, count, now, transactional, from_client, guard)


@settings(deadline=None, max_examples=300)
@given(st.lists(STEPS, max_size=60))
def test_state_follows_the_rules(steps: list[tuple[Any, ...]]) -> None:
    """Results, producers and the first unstable offset equal those of the model, even after snapshots."""
    state, model, offset = ProducerStateManager(), Model(), 0
    for now, step in enumerate(steps):
        p = model.producers.get(step[1]) if len(step) > 1 else None
        match step:
            case "next", pid, count, transactional:
                epoch = max(p.epoch, 0) if p else 0
                sequence = (p.batches[-1][1] + 1) % MODULUS if p and p.batches else 0
                append(state, model, pid, epoch, sequence, offset, count, now, transactional, True)
            case "repeat", pid, i if p and len(p.batches) > i:
                first, last = p.batches[i][:2]
                append(
                    state,
                    model,
                    pid,
                    p.epoch,
                    first,
                    offset,
                    (last - first) % MODULUS + 1,
                    now,
                    p.txn is not None,
                    True,
                )
            case "append", pid, epoch, sequence, count, transactional, from_client, kind:
                entry = model.verified.get(pid, [0])
                guard = {"none": -1, "open": 0, "own": entry[0], "of another": entry[0] + 1}[kind]
                append(state, model, pid, epoch, sequence, offset, count, now, transactional, from_client, guard)
            case "verify", pid, epoch, sequence, bumps_epochs:
                got = state.verify(pid, epoch, sequence, bumps_epochs=bumps_epochs, now_ms=now)
                assert got == model.verify(pid, epoch, sequence, bumps_epochs, got[1], now)
                assert got[1] == 0 or all(got[1] != e[0] for k, e in model.verified.items() if k != pid)
            case "end", pid, epoch, commit, coordinator_epoch, version:
                ended = state.end_transaction(
                    pid, epoch, offset, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=now,
                    transaction_version=version,
                )  # fmt: skip
                assert ended == model.end(pid, epoch, offset, commit, coordinator_epoch, now, version)
            case "watermark", high_watermark:
                state.set_high_watermark(high_watermark)
                model.ended = [(f, m) for f, m in model.ended if m >= high_watermark]
            case "expire", expiration:
                state.expire(now, expiration)
                model.expire(now, expiration)
            case ("reload",):
                with TemporaryDirectory() as folder:
                    state.write_snapshot(f"{folder}/0.snapshot")
                    state = ProducerStateManager()
                    state.load_snapshot(f"{folder}/0.snapshot", now_ms=now, expiration_ms=10**9)
                model.ended, model.verified = [], {}
                for q in model.producers.values():  # a snapshot has one time per producer, which markers set too
                    q.batches = deque([(*b[:4], q.timestamp) for b in list(q.batches)[-1:]], maxlen=5)
        offset += 7
        assert state.describe() == model.describe()
        assert state.first_unstable_offset == model.first_unstable()
        assert len(state) == len(model.producers)
        assert state.verifications == len(model.verified)
