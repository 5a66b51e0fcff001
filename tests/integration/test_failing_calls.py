"""Failures of the Nth system call of each kind on the log folders, for every N that a mixed load reaches.

Only the partitions concerned return errors, no thread ends with a traceback, and service continues after a temporary
failure. After a kill, each acknowledged record, topic, config, offset and transaction is present once and in order.
"""

import errno
import itertools
import random
from collections.abc import Iterator

import pytest

from tests.support.disk_calls import ALWAYS, FAIL, SHORT
from tests.support.fault_runs import LOAD, START, STOP, Case, Runs

DATA, METADATA = "/a/", "/m/"  # the log folder with half of the partitions, and the folder of the metadata log
#: Logs of the coordinators of groups, and of transactions and share groups, in whichever folder they are.
COORDINATORS = ("/__consumer_offsets-0/", "_state-0/")
OF_LOGS = ("write", "sync", "truncate", "open")  # calls on the files of these logs
SAMPLE_SEED, SAMPLE = 28, 16

#: Kinds of failure: call, error, number of calls that fail, action.
PASSING = (
    ("write", errno.ENOSPC, ALWAYS, FAIL),
    ("write", 0, 1, SHORT),
    ("write", errno.EINTR, 1, FAIL),
    ("sync", errno.EINTR, 1, FAIL),
    ("truncate", errno.EINTR, 1, FAIL),
    ("rename", errno.ENOSPC, 1, FAIL),
    ("mkdir", errno.ENOSPC, 1, FAIL),
    ("open", errno.EMFILE, ALWAYS, FAIL),
)
LASTING = tuple(
    (call, errno.EIO, 1, FAIL) for call in ("write", "sync", "truncate", "rename", "open", "unlink", "mkdir")
)
KINDS = {LOAD: PASSING + LASTING, START: (*LASTING, ("open", errno.EMFILE, 1, FAIL), ("write", errno.ENOSPC, 1, FAIL))}
KINDS[STOP] = KINDS[START]
SWEEPS = [
    Case(phase, call, error, part, 1, times, action)
    for phase, kinds in KINDS.items()
    for call, error, times, action in kinds
    for part in (DATA, METADATA)
] + [
    Case(LOAD, call, error, part, 1, times, action)
    for call, error, times, action in KINDS[LOAD]
    if call in OF_LOGS
    for part in COORDINATORS
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with Runs(tmp_path_factory.mktemp("failing-calls")) as made:
        yield made


def test_a_sample_of_failing_calls(runs: Runs) -> None:
    """Failures of randomly chosen calls are handled."""
    rng = random.Random(SAMPLE_SEED)
    failed = 0
    for case in rng.sample(SWEEPS, SAMPLE):
        chosen = case._replace(first=rng.randrange(1, 12))
        result = runs.make(chosen)
        failed += result.failed > 0
        assert (str(chosen), result.problems) == (str(chosen), [])
    assert failed >= SAMPLE // 3, "the calls of most cases are not reached"


@pytest.mark.soak
@pytest.mark.parametrize("case", SWEEPS, ids=str)
def test_each_call_that_the_load_reaches(runs: Runs, case: Case) -> None:
    """Failures of each call that the load reaches are handled."""
    made = list(runs.sweep(case))
    print(f"{len(made)} runs")
    assert [(str(one), result.problems) for one, result in made if result.problems] == []


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_failed_sync_is_noticed(runs: Runs, error: int) -> None:
    """Each failed sync of the load is counted as a failure, and not repeated."""
    results = itertools.islice(runs.sweep(Case(LOAD, "sync", error, DATA, 1)), 5)
    assert [result for _, result in results] == [(1, [])] * 5
