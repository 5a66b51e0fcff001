"""The comparison of files between a driver and its executors."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kbroker.spark import shared_folder
from kbroker.spark.errors import PipelineError
from kbroker.spark.shared_folder import BEGINNING_BYTES, MAX_FILES, require_shared


class FakeSpark:
    """Spark whose tasks run here, after a change that only its executors see."""

    def __init__(self, change: Callable[[], object]) -> None:
        self._change = change

    def range(self, start: int, end: int, numPartitions: int) -> "FakeSpark":
        self._tasks = range(start, end)
        return self

    def mapInArrow(self, look: Callable[[Iterable[Any]], Iterator[Any]], schema: str) -> "FakeSpark":
        self._look = look
        return self

    def collect(self) -> list[dict[str, Any]]:
        self._change()
        batches = [pa.RecordBatch.from_arrays([pa.array([task])], ["id"]) for task in self._tasks]
        return [row for batch in self._look(batches) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("number", "place", "is_found"),
    [
        (0, 0, True),
        (MAX_FILES - 1, BEGINNING_BYTES - 1, True),
        (MAX_FILES - 1, BEGINNING_BYTES, False),
        (MAX_FILES, 0, False),
    ],
)
def test_the_beginnings_of_the_first_files_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, place: int, is_found: bool
) -> None:
    """Another byte in the beginning of one of the first files is found, a later one is not looked for."""
    monkeypatch.setattr(shared_folder, "runs_elsewhere", lambda spark: True)
    monkeypatch.setattr(shared_folder, "parallelism", lambda spark: 1)
    files = [tmp_path / str(each) for each in range(MAX_FILES + 1)]
    content = bytes(BEGINNING_BYTES + 1)
    for file in files:
        file.write_bytes(content)
    changed = content[:place] + b"x" + content[place + 1 :]
    spark: Any = FakeSpark(lambda: files[number].write_bytes(changed))
    if is_found:
        with pytest.raises(PipelineError, match=f"has another {files[number]} than this machine: logs must be"):
            require_shared(spark, None, files, what="logs")
    else:
        require_shared(spark, None, files, what="logs")
