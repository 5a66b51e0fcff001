"""Requests of every advertised API and version, whose responses are compared field by field with Apache Kafka's."""

import copy
import re
from collections.abc import Iterator

import pytest

from tests.conformance.run import (
    LEFT_OUT,
    OTHER_WORDS,
    Case,
    Runner,
    cases,
    judged,
    load,
    reason_of,
    reasons,
    recorded_of,
)
from tests.conformance.sasl import SETTINGS
from tests.conformance.talk import look_at
from tests.support.broker import BrokerProcess
from tests.support.ports import free_run

AT_A_TIME = 10  # some cases wait for seconds


def chosen() -> list[Case]:
    return [case for case in cases() if reason_of(case) is None]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    port = free_run(2)
    listeners = f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{port + 1}"
    settings = {"group.initial.rebalance.delay.ms": "0", "listeners": listeners, **SETTINGS}
    broker = BrokerProcess(tmp_path_factory.mktemp("conformance") / "data", settings)
    broker.port = port
    with broker:
        yield broker


def test_every_case_is_recorded() -> None:
    """The recording has the responses of every case, including those left out, and no others."""
    assert {case.id for case in cases()} == load().keys()
    unused = [row for row in reasons(LEFT_OUT) if not any(re.search(row, case.id) for case in cases())]
    assert not unused, "a line of left_out.txt fits no case"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_responses_are_apache_kafkas(broker: BrokerProcess) -> None:
    """The responses equal the recorded ones of Apache Kafka, except for the error messages of other_words.txt."""
    runner, recording = Runner(look_at(broker.bootstrap, f"127.0.0.1:{broker.port + 1}"), AT_A_TIME), load()
    runner.warm()
    verdicts = [judged(run, recording[run.case.id]) for run in runner.run_all(chosen())]
    used = set()
    for verdict in verdicts:
        for remark in verdict.remarks:
            rows = {row for row in reasons(OTHER_WORDS) if re.search(row, f"{verdict.run.case.id} {remark}")}
            used |= rows
            verdict.differences += [] if rows else [remark]
    wrong = [verdict for verdict in verdicts if verdict.differences or verdict.word not in ("same", "absent")]
    shown = "\n".join(f"{verdict.run.case.id}: {'; '.join(verdict.differences[:3])}" for verdict in wrong[:20])
    assert not wrong, f"{len(wrong)} cases differ\n{shown}"
    assert sum(verdict.word == "same" for verdict in verdicts) > 1500
    assert used == reasons(OTHER_WORDS).keys(), "a line of other_words.txt fits no message"
    assert broker.is_alive()


def test_the_comparison_can_fail(broker: BrokerProcess) -> None:
    """A changed value or type, an added or missing field or step is a difference; another message is a remark."""
    (case,) = (case for case in cases() if case.id == "produce/wrong_checksum 12")
    run = Runner(look_at(broker.bootstrap)).run(case)
    recorded = recorded_of(run)
    assert judged(run, recorded).word == "same"
    (code,) = (path for path, value in recorded[0][1].items() if path.endswith(".ErrorCode") and value == 2)
    for path, value in ((code, 3), (code, True), ("More", 0)):
        changed = copy.deepcopy(recorded)
        changed[0][1][path] = value
        assert judged(run, changed).word == "differs"
    changed = copy.deepcopy(recorded)
    del changed[0][1][code]
    assert judged(run, changed).word == "differs"
    assert judged(run, []).word == "differs"
    assert judged(run, recorded * 2).word == "differs"
    message = code.replace("ErrorCode", "ErrorMessage")
    changed = copy.deepcopy(recorded)
    changed[0][1][message] = "other words"
    assert (judged(run, changed).word, len(judged(run, changed).remarks)) == ("same", 1)
