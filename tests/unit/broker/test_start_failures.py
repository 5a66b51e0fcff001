"""Starts of a broker without a metadata log, threads or current folder, and a start after a failure."""

import errno
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker, BrokerStartError
from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.log.metadata_log import MetadataLog
from kbroker.testing import EmbeddedBroker, EmbeddedCluster
from tests.support.errors import raising


def make_broker(folder: Path) -> Broker:
    return Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), "node.id": 1})


@pytest.mark.parametrize("make", [Broker, EmbeddedBroker, partial(EmbeddedCluster, 1)])
@pytest.mark.parametrize("settings", ["server.properties", 1, ["log.dirs"], {1: "x"}])
def test_settings_of_a_wrong_type(make: Callable[[Any], object], settings: object) -> None:
    with pytest.raises(TypeError, match=r"expected a mapping from names of settings.*got (str|int|list|dict); BrokerC"):
        make(settings)


def test_settings_in_place_of_the_number_of_brokers() -> None:
    wrong: Any = {"num.io.threads": 1}
    with pytest.raises(TypeError, match=r"expected a number of brokers, got .*; settings are the second argument"):
        EmbeddedCluster(wrong)


@pytest.mark.parametrize(
    "last_step", ["kbroker.broker.broker.logger.info", "kbroker.log.checkpoints.CheckpointFile.read"]
)
def test_ctrl_c_at_any_step_of_a_start_leaves_the_folder_free(
    last_step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(last_step, raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            broker.start()
    assert not broker.is_running
    with make_broker(tmp_path):
        pass


def test_a_sync_that_fails_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed sync raises a start error of one sentence, and the next start succeeds."""
    broker = make_broker(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "flush", raising(OSError(5, "Input/output error")))
        with pytest.raises(BrokerStartError, match=r"^the metadata log cannot be synced: Input/output error$"):
            broker.start()
    with broker:
        assert broker.failure == ""


def test_a_write_that_fails_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a write has no file, so the start error names the folders."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "kbroker.metadata.log.formatter.write_snapshot", raising(OSError(errno.ENOSPC, "No space left on device"))
        )
        with pytest.raises(BrokerStartError) as refused:
            make_broker(tmp_path).start()
    assert str(refused.value) == f"cannot write a file in {tmp_path}: No space left on device"


def test_an_append_that_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error's message has no error code of the protocol."""
    error = KafkaError(Errors.KAFKA_STORAGE_ERROR, "Cannot write the metadata log: No space left on device")
    monkeypatch.setattr(MetadataLog, "append", raising(error))
    with pytest.raises(BrokerStartError, match=r"^Cannot write the metadata log: No space left on device$"):
        make_broker(tmp_path).start()


def test_a_start_clears_the_failure(tmp_path: Path) -> None:
    broker = make_broker(tmp_path)
    broker.failure = "the metadata log cannot be synced"
    with broker:
        assert broker.failure == ""


def test_threads_that_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the limits to raise."""
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
    with pytest.raises(BrokerStartError, match=r"^the system starts no more threads; raise the limit .*TasksMax"):
        make_broker(tmp_path).start()


def test_a_current_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative log folder is refused with the reason, and a broker in memory starts."""
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(BrokerStartError, match=r"^a log folder is relative to the current folder, which has been del"):
        make_broker(Path("data")).start()
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "kbroker.in.memory": "true"}) as broker:
        assert broker.describe().endswith(" in memory")
