"""Everyday scenario: the steps of every client, the output of its program, and the expected results.

A program is called with BOOTSTRAP, TOPIC and START_MS. It prints one line of JSON per step, with the name in `step`, an
`error` if the step failed, or a reason in `cannot` if the library lacks the feature. It creates three topics: TOPIC
with a partition for each codec, by the codec's id, and a sixth partition; TOPIC-time; and TOPIC-group.

================  ====================================================================================================
version           `version` of the library
create            the three topics, with 6, 1 and 4 partitions, by the library's admin client
none ... zstd     `offsets` of 10 records `CODEC N abc abc ...` in the codec's partition, without idempotence
idempotent        `offsets` of 10 records of an idempotent producer in partition 5
read              `values` of TOPIC by partition, from the beginning
group             member a reads 40 records alone, b joins, both read 40 more, a leaves, b reads the last 40. A member
                  that reads commits, waits for the response, and then adds [member, partition, offset, value] to
                  `reads`. `held` has the partitions of each member in the three phases
by time           50 records 10 ms apart from START_MS; the `offset` at START_MS + 171 and the `values` from there
list              the `topics` of the three that are listed
describe          the `leaders` of TOPIC's partitions
configs           `retention.ms` `before` and `after` a change to 123456789, which takes Kafka a moment
delete            TOPIC-time; the other topics stay for the check; `left` has the deleted topic if it is still listed
================  ====================================================================================================
"""

import json
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.clients.python_clients import ALL_CODECS, Confluent
from tests.support import wire

STEPS = ("create", *ALL_CODECS, "idempotent", "read", "group", "by time", "list", "describe", "configs", "delete")
RECORDS, PER_PHASE, PHASES = 10, 10, 3
WEEK_MS = "604800000"


def compressible(note: str) -> list[str]:
    return [f"{note} {n} " + "abc " * 30 for n in range(RECORDS)]


class Lines:
    """Output of a program, whose lines are compared with the records in the broker."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.version = "?"
        self.cells: dict[str, str] = {}
        self.failures: list[str] = []

    def take(self, line: str) -> None:
        said = json.loads(line)
        step = said.pop("step")
        if step == "version":
            self.version = said["version"]
            return
        assert step in STEPS, f"unknown step {step!r}"
        assert step not in self.cells, f"duplicate step {step!r}"
        if "cannot" in said:
            self.cells[step] = "no"
            assert step in ALL_CODECS, f"every client has {step}: {said['cannot']}"
            return
        try:
            assert "error" not in said, said["error"]
            getattr(self, "judge_" + step.replace(" ", "_"), lambda said: self.judge_codec(step, said))(said)
        except AssertionError as failure:
            self.cells[step] = "FAILED"
            self.failures.append(f"{step}: {failure}")
        else:
            self.cells[step] = "yes"

    def partition(self, step: str) -> int:
        return ALL_CODECS.index(step) if step in ALL_CODECS else 5

    def on_the_log(self, partition: int) -> tuple[set[int], list[int], int]:
        """Return the codecs and producer ids of the stored batches, and their number of records."""
        with wire.Connection(self.bootstrap) as connection:
            response = wire.fetched(connection.ask(wire.fetch(self.topic, (partition,))))
        assert response.error_code == 0
        batches = response.batches()
        producers, at = [], 0
        for _ in batches:
            (length,) = struct.unpack_from(">i", response.records, at + 8)
            producers.append(struct.unpack_from(">q", response.records, at + 43)[0])
            at += 12 + length
        return {codec for _, codec, _, _ in batches}, producers, sum(count for _, _, count, _ in batches)

    def judge_create(self, said: Mapping[str, Any]) -> None:
        assert said["topics"] == [self.topic, f"{self.topic}-time", f"{self.topic}-group"]

    def judge_codec(self, step: str, said: Mapping[str, Any]) -> None:
        assert said["offsets"] == list(range(RECORDS))
        codecs, producers, count = self.on_the_log(self.partition(step))
        assert (codecs, count) == ({wire.CODECS.get(step, 0)}, RECORDS)
        assert all((producer >= 0) == (step == "idempotent") for producer in producers), producers

    def judge_read(self, said: Mapping[str, Any]) -> None:
        sent = [step for step in (*ALL_CODECS, "idempotent") if self.cells[step] == "yes"]
        assert said["values"] == {str(self.partition(step)): compressible(step) for step in sent}

    def judge_group(self, said: Mapping[str, Any]) -> None:
        alone, both, left = said["held"]
        assert alone == {"a": [0, 1, 2, 3]}
        assert left == {"b": [0, 1, 2, 3]}
        assert sorted(both["a"] + both["b"]) == [0, 1, 2, 3]
        assert (len(both["a"]), len(both["b"])) == (2, 2)
        reads = said["reads"]
        twice = [place for place, n in Counter((p, offset) for _, p, offset, _ in reads).items() if n > 1]
        assert not twice, f"read twice: {twice}"
        end = PER_PHASE * PHASES
        for p in range(4):
            found = [(member, offset, value) for member, where, offset, value in reads if where == p]
            readers = "a" * PER_PHASE + ("a" if p in both["a"] else "b") * PER_PHASE + "b" * PER_PHASE
            assert found == [(readers[n], n, f"{p}-{n}") for n in range(end)], f"partition {p}"
        group = f"{self.topic}-group"
        assert Confluent(self.bootstrap).committed(group, group, 4) == [end] * 4

    def judge_by_time(self, said: Mapping[str, Any]) -> None:
        assert said["offset"] == 18
        assert said["values"] == [f"record {n}" for n in range(18, 50)]

    def judge_list(self, said: Mapping[str, Any]) -> None:
        assert said["topics"] == [self.topic, f"{self.topic}-time", f"{self.topic}-group"]

    def judge_describe(self, said: Mapping[str, Any]) -> None:
        leaders = said["leaders"]
        assert len(leaders) == 6
        assert len(set(leaders)) == 1
        assert leaders[0] >= 0

    def judge_configs(self, said: Mapping[str, Any]) -> None:
        assert (said["before"], said["after"]) == (WEEK_MS, "123456789")

    def judge_delete(self, said: Mapping[str, Any]) -> None:
        assert said["left"] == []
        found = {name for name in Confluent(self.bootstrap).topics() if name.startswith(self.topic)}
        assert found == {self.topic, f"{self.topic}-group"}

    def row(self, name: str) -> str:
        """Return the client's row of the table in docs/compatibility.md."""
        return "| " + " | ".join((name, self.version, *(self.cells.get(step, "?") for step in STEPS))) + " |"


def heading() -> list[str]:
    return ["| client | version | " + " | ".join(STEPS) + " |", "|---" * (len(STEPS) + 2) + "|"]
