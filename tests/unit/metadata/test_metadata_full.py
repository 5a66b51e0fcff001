"""Metadata that cannot be stored gets error 56 and has no effect; a reserve serves changes that free space."""

import errno
import logging
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError, OutcomeUnknownError
from kbroker.log._partition_log import PartitionLog
from kbroker.metadata.log.metadata_log import RESERVE_BYTES, RESERVE_NAME, START_BYTES
from kbroker.metadata.topic_rules import NewTopic
from tests.support.metadata import LoggedController, content
from tests.support.server import Bench, make_bench

STORAGE = int(Errors.KAFKA_STORAGE_ERROR)


@pytest.fixture
def bench() -> Bench:
    made = make_bench()
    made.create("there", 1, retention_ms="1000")
    return made


def state(bench: Bench) -> tuple[object, ...]:
    """Return the state in force after a check that the stored state is equal."""
    ctx, image = bench.ctx, bench.ctx.image
    views = [(view.name, view.topic_id, len(view.partitions), dict(view.configs)) for view in ctx.topics.all()]
    stored = sorted((one.name, one.topic_id, one.partitions, dict(one.configs)) for one in bench.stored)
    assert sorted(views) == stored
    partitions = [(view.name, index) for view in ctx.topics.all() for index in range(len(view.partitions))]
    assert sorted(bench.logs.open) == sorted(partitions)
    quotas = {entity for entity, _ in ctx.quota_entities.find({}, [], False)}
    assert quotas == set(image.client_quotas)
    assert {user for user, _ in image.scram_credentials} == set(ctx.credentials.users())
    return views, ctx.config.integer("message.max.bytes"), content(image)


ALONE = {"ReplicationFactor": 1, "Assignments": [], "Configs": []}
NO_ID = uuid.UUID(int=0)


def topic(name: str, partitions: int) -> dict[str, Any]:
    return {"Name": name, "NumPartitions": partitions, **ALONE}


def more(name: str) -> dict[str, Any]:
    return {"Name": name, "Count": 5, "Assignments": None}


def resource(kind: int, name: str, *configs: dict[str, Any]) -> dict[str, Any]:
    return {"ResourceType": kind, "ResourceName": name, "Configs": list(configs)}


def quota(user: str, key: str) -> dict[str, Any]:
    ops = [{"Key": key, "Value": 5.0, "Remove": False}]
    return {"Entity": [{"EntityType": "user", "EntityName": user}], "Ops": ops}


LOWERED = {"Name": "retention.ms", "ConfigOperation": 0, "Value": "1"}
RETENTION = {"Name": "retention.ms", "Value": "7"}
LARGEST = {"Name": "message.max.bytes", "ConfigOperation": 0, "Value": "7777"}
USER = {"Name": "u", "Mechanism": 1, "Iterations": 4096, "Salt": b"s", "SaltedPassword": b"p" * 32}
REQUESTS: dict[str, tuple[int, dict[str, Any]]] = {
    "CreateTopics": (7, {"Topics": [topic("a", 2), topic("b", 1), topic("bad name", 1)]}),
    "DeleteTopics": (6, {"Topics": [{"Name": name, "TopicId": NO_ID} for name in ("there", "none")]}),
    "CreatePartitions": (3, {"Topics": [more("there"), more("none")]}),
    "AlterConfigs": (2, {"Resources": [resource(2, "there", RETENTION), resource(2, "none")]}),
    "IncrementalAlterConfigs": (1, {"Resources": [resource(4, "", LARGEST), resource(2, "none")]}),
    "AlterClientQuotas": (1, {"Entries": [quota("u", "producer_byte_rate"), quota("v", "no_such_key")]}),
    "AlterUserScramCredentials": (0, {"Deletions": [{"Name": "none", "Mechanism": 1}], "Upsertions": [USER]}),
}
WHERE = {
    "CreateTopics": "Topics",
    "CreatePartitions": "Results",
    "AlterClientQuotas": "Entries",
    "AlterUserScramCredentials": "Results",
}
#: The first rows are valid and cannot be stored; the other rows are invalid.
CODES = {
    "CreateTopics": [STORAGE, STORAGE, 17], "DeleteTopics": [STORAGE, 3], "CreatePartitions": [STORAGE, 3],
    "AlterConfigs": [STORAGE, 3], "IncrementalAlterConfigs": [STORAGE, 3], "AlterClientQuotas": [42, STORAGE],
    "AlterUserScramCredentials": [STORAGE, 91],
}  # fmt: skip


@pytest.mark.parametrize("name", list(REQUESTS))
def test_what_cannot_be_stored_is_refused_and_not_in_force(
    bench: Bench, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A change that cannot be stored gets error 56 with a text but no traceback, and succeeds when there is space."""
    version, body = REQUESTS[name]
    before = state(bench)
    bench.storage.is_full = True
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            response = bench.ask(name, version, body)
            rows = response[WHERE.get(name, "Responses")]
            assert [row["ErrorCode"] for row in rows] == CODES[name]
            assert {row["ErrorMessage"] for row in rows if row["ErrorCode"] == STORAGE} == {"the disk is full"}
    assert "Traceback" not in caplog.text
    bench.storage.is_full = False
    assert state(bench) == before
    response = bench.ask(name, version, body)
    assert STORAGE not in [row["ErrorCode"] for row in response[WHERE.get(name, "Responses")]]
    assert state(bench) != before


def test_a_topic_whose_folders_fail_and_whose_removal_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start would create the topic, so the outcome is unknown and the broker stops."""
    bench.logs.fail_at = ("t", 0)
    append, calls = bench.storage.append, 0

    def only_the_first(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR, "the disk is full")
        append(*args, **kwargs)

    monkeypatch.setattr(bench.storage, "append", only_the_first)
    with pytest.raises(OutcomeUnknownError, match="topics whose logs could not be created cannot be deleted"):
        bench.ctx.topics.create(NewTopic("t", 1))
    assert bench.ctx.topics.get("t") is None


def test_producer_ids_that_cannot_be_stored(bench: Bench) -> None:
    bench.storage.is_full = True
    response = bench.ask("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1})
    assert response["ErrorCode"] == Errors.KAFKA_STORAGE_ERROR


class LogOnFullDisk:
    """Log whose appends use up ``free_bytes``."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.free_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def append(self, batch: bytes, **kwargs: Any) -> Any:
        self.log._inject_fault(write_errno=errno.ENOSPC if len(batch) > self.free_bytes else 0)
        info = self.log.append(batch, **kwargs)
        self.free_bytes -= 0 if info.error else len(batch)
        return info


def fill_disk(controller: LoggedController, patch: pytest.MonkeyPatch) -> LogOnFullDisk:
    """Leave only the space of files that are removed later."""
    disk = LogOnFullDisk(controller.log._log)
    truncate, open_ = os.truncate, Path.open

    def cut(path: Path, size_bytes: int) -> None:
        disk.free_bytes += path.stat().st_size - size_bytes
        truncate(path, size_bytes)

    def open_file(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "w" in mode and disk.free_bytes < RESERVE_BYTES:
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_(path, mode, *args, **kwargs)

    patch.setattr(controller.log, "_log", disk)
    patch.setattr(os, "truncate", cut)
    patch.setattr(Path, "open", open_file)
    return disk


def test_space_is_kept_for_what_frees_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk refuses new topics while retention can be lowered and topics can be deleted."""
    controller = LoggedController(tmp_path)
    names = [f"t{number}" for number in range(300)]
    bench = make_bench(controller)
    for name in names:
        bench.create(name)
    disk = fill_disk(controller, monkeypatch)
    for _ in range(2):
        response = bench.ask("CreateTopics", 7, {"Topics": [topic("new", 1)]})
        assert [row["ErrorCode"] for row in response["Topics"]] == [STORAGE]
    assert (tmp_path / RESERVE_NAME).exists()
    for name in names:
        response = bench.ask("IncrementalAlterConfigs", 1, {"Resources": [resource(2, name, LOWERED)]})
        assert response["Responses"][0]["ErrorCode"] == 0
    response = bench.ask("CreateTopics", 7, {"Topics": [topic("new", 1)]})
    assert [row["ErrorCode"] for row in response["Topics"]] == [STORAGE]
    assert "no space can be kept for a full disk" in response["Topics"][0]["ErrorMessage"]
    assert (tmp_path / RESERVE_NAME).stat().st_size == START_BYTES
    for name in names:
        response = bench.ask("DeleteTopics", 6, {"Topics": [{"Name": name, "TopicId": NO_ID}]})
        assert response["Responses"][0]["ErrorCode"] == 0
    disk.free_bytes = 10 * RESERVE_BYTES
    bench.create("again")
    assert (tmp_path / RESERVE_NAME).stat().st_size == RESERVE_BYTES
    monkeypatch.undo()
    controller.log._log._inject_fault()
    controller.close()
    again = LoggedController(tmp_path)
    assert list(again.image.topics) == ["again"]
    again.close()
