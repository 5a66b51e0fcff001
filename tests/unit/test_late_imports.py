"""Modules that a broker imports only after its start, such as handlers of rare APIs and logging."""

import logging
import subprocess
import sys

import pytest

from kbroker.common.errors import Errors
from kbroker.common.loggers import get_logger
from kbroker.handlers.api_table import KafkaApis, LateFunction, whole_failure
from kbroker.protocol import codec
from kbroker.protocol._encoder import message_files, message_table
from kbroker.protocol.schema import apis as tables
from kbroker.requests.context import RequestContext


def printed(program: str) -> str:
    """Return the output of a program in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


LATE = [
    function
    for entry in KafkaApis().entries.values()
    for function in (entry.handle, entry.failure)
    if isinstance(function, LateFunction)
]


@pytest.mark.parametrize("function", LATE, ids=lambda late: f"{late.module.rpartition('.')[2]}.{late.name}")
def test_every_handler_can_be_imported(function: LateFunction) -> None:
    """Each module that the table names as text exists and has both functions."""
    assert callable(function.load())


def test_a_failure_without_a_function_has_the_error_of_its_response() -> None:
    """An API without its own ``failure`` returns an error code for the whole request with the error's message."""
    error, tried = Errors.CLUSTER_AUTHORIZATION_FAILED, 0
    for entry in KafkaApis().entries.values():
        if isinstance(entry.failure, LateFunction) and entry.failure.load() is whole_failure:
            version = entry.max_version
            body = entry.failure({}, error, RequestContext(entry.key, version))
            sent = codec.decode_response(entry.key, version, codec.encode_response(entry.key, version, body))
            assert (sent["ErrorCode"], sent.get("ErrorMessage", error.message)) == (31, error.message), entry.name
            tried += 1
    assert tried >= 19


def test_every_api_but_the_native_ones_has_a_handler() -> None:
    """Only Produce and Fetch are served by the native handlers alone."""
    without = [key for key, entry in KafkaApis().entries.items() if entry.handle is None or entry.failure is None]
    assert without == [0, 1]


def test_the_table_of_versions_imports_no_handler() -> None:
    """The version ranges are exact before any handler is imported, and the table is ordered by API key."""
    program = (
        "import sys\nfrom kbroker.handlers.api_table import KafkaApis\nranges = KafkaApis().ranges()\n"
        "assert list(ranges) == sorted(ranges)\n"
        "print(len(ranges), *[m for m in sys.modules if m.startswith('kbroker.apis.api')])"
    )
    assert printed(program) == str(len(KafkaApis().entries))


def test_many_threads_may_ask_first() -> None:
    """Eight threads import every handler at once, in two orders, in an interpreter that has imported none."""
    program = (
        "import threading\nfrom kbroker.handlers.api_table import KafkaApis\n"
        "late = [f for e in KafkaApis().entries.values() for f in (e.handle, e.failure) if f is not None]\n"
        "errors, start = [], threading.Barrier(8)\n"
        "def load(order):\n"
        "    start.wait(10)\n"
        "    for function in order:\n"
        "        try: assert callable(function.load())\n"
        "        except BaseException as error: errors.append(repr(error))\n"
        "threads = [threading.Thread(target=load, args=(late[::1 - n % 2 * 2],)) for n in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join(30)\n"
        "print(errors, sum(thread.is_alive() for thread in threads))"
    )
    assert printed(program) == "[] 0"


def test_a_late_function_is_imported_once_and_passes_arguments_on() -> None:
    join = LateFunction("os.path", "join")
    assert (join("a", "b"), join("c", "d")) == ("a/b", "c/d") if sys.platform != "win32" else (join("a", "b"),)
    with pytest.raises(ModuleNotFoundError):
        LateFunction("kbroker.apis.api99_nothing", "handle")(1, 2)


# ------------------------------------------------------------ large modules of the standard library


def test_a_start_loads_no_dataclasses() -> None:
    """A start loads no dataclasses (`inspect`, `ast`, `dis`: 1.6 MiB and 13 ms), JSON, logging, OpenSSL or SQLite.

    `typing` itself loads `ast` for a named tuple since Python 3.14 (2 ms).
    """
    program = (
        "import sys\nimport kbroker.__main__, kbroker.serving\nfrom kbroker.broker import Broker\n"
        "large = {'asyncio', 'dataclasses', 'inspect', 'json', 'logging', 'sqlite3', 'ssl'}\n"
        "if sys.version_info < (3, 14): large.add('ast')\n"
        "with Broker(): print(sorted(large & sys.modules.keys()))"
    )
    assert printed(program) == "[]"


# ------------------------------------------------------------ logging


def test_logging_is_loaded_for_a_warning() -> None:
    """Messages below a warning load nothing, since logging is not configured; a warning is printed to stderr."""
    program = (
        "import sys\nfrom kbroker.common.loggers import get_logger\nlogger = get_logger('kbroker.x')\n"
        "logger.info('one')\nlogger.debug('two', 2)\nbefore = 'logging' in sys.modules\n"
        "sys.stderr = sys.stdout\nlogger.warning('three %d', 3)\nprint(before, 'logging' in sys.modules)"
    )
    assert printed(program).split() == ["three", "3", "False", "True"]


def test_a_late_logger_is_the_logger_of_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """Levels, handlers and the caller's function name are those of the real logger."""
    logger = get_logger("kbroker.test_late")
    with caplog.at_level(logging.INFO, "kbroker.test_late"):
        logger.info("seen %s", "once")
        logger.debug("not seen")
    (record,) = caplog.records
    assert (record.name, record.getMessage(), record.funcName) == (
        "kbroker.test_late",
        "seen once",
        "test_a_late_logger_is_the_logger_of_its_name",
    )


def test_levels_can_be_set_before_a_module_is_imported() -> None:
    """A BROKER_LOGGER resource lists the loggers of modules that no client has needed yet."""
    program = (
        "import importlib\nimport kbroker.broker.broker\nfrom kbroker.common import loggers\n"
        "from kbroker.metadata.configs.broker_loggers import levels\n"
        "from kbroker.handlers.api_table import KafkaApis\n"
        "known = set(levels())\n"
        "for entry in KafkaApis().entries.values():\n"
        "    entry.handle is None or entry.handle.load()\n"
        "for name in ('coordinator.group_service', 'request_log.writer', 'metadata.configs.dynamic_configs'):\n"
        "    importlib.import_module(f'kbroker.{name}')\n"
        "print(sorted(set(loggers.names()) - known))"
    )
    assert printed(program) == "[]"


# ------------------------------------------------------------ tables


def test_every_table_is_compiled_in() -> None:
    """Each API's message table is compiled in, and an unknown file is a KeyError."""
    files = set(message_files())
    others = {"index.json", "headers.json", "data.json", "metadata.json"}
    assert {schema.file for schema in tables().values()} | others == files
    with pytest.raises(KeyError):
        message_table("nothing.json")


def test_tables_are_those_of_the_sources() -> None:
    """The compiled tables equal the JSON files of ``messages/``."""
    import json
    from pathlib import Path

    import kbroker.protocol.messages

    folder = Path(kbroker.protocol.messages.__file__).parent
    for path in sorted(folder.glob("*.json")):
        assert message_table(path.name) == json.loads(path.read_text(encoding="utf-8")), path.name
