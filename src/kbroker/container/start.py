"""The start of a broker in a container: settings, formatted log folders, the lines that tools wait for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker import serving
from kbroker.common.configs.config import from_environment, parse_properties
from kbroker.container.settings import DEFAULTS_DIR, FILE, FINAL_DIR, MOUNTED_DIR, is_of_kafka, properties_text
from kbroker.container.stores import StoreError, with_pem_stores

if TYPE_CHECKING:
    from kbroker.broker import Broker
    from kbroker.common.configs.config import BrokerConfig

DATA_DIR = "/var/lib/kafka/data"
NATIVE_PREFIX = "-Dkafka."  # begins the options of kafka-native, a container of Quarkus


def prepared(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the broker, after formatting its log folders for ``CLUSTER_ID`` if they are new.

    Args: ``words``: a properties file, which replaces the image's files, ``--override NAME=VALUE``, and
    ``-Dkafka.NAME=VALUE``. Raises: serving.OptionError, serving.ServeError.
    """
    files, changes = _words(words)
    properties = parse_properties(_text(files, environ))
    properties.update(from_environment({name: environ[name] for name in environ if not is_of_kafka(name)}))
    properties.update(changes)
    if "zookeeper.connect" in properties:
        del properties["zookeeper.connect"]
        print("zookeeper.connect is ignored: the metadata of this broker is in its own log", file=sys.stderr)
    if "listeners" not in properties and "advertised.listeners" in properties:
        properties["listeners"] = _on_all_interfaces(properties["advertised.listeners"])
    if "log.dirs" not in properties and "log.dir" not in properties:
        properties["log.dirs"] = DATA_DIR
    try:
        properties = with_pem_stores(properties)
    except StoreError as error:
        raise serving.ServeError(str(error), serving.CONFIG_STATUS) from None
    cluster_id = environ.get("CLUSTER_ID")
    if cluster_id and properties.get("kbroker.in.memory", "false").lower() != "true":
        _format(properties, cluster_id)
    return properties


def _words(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    files: list[str] = []
    changes = {}
    rest = iter(words)
    for word in rest:
        setting = None
        if word == "--override":
            setting = next(rest, "")
        elif word.startswith(NATIVE_PREFIX):
            setting = word.removeprefix(NATIVE_PREFIX)
        elif word in ("-daemon", "-loggc") or word.startswith("-D"):
            continue  # options for the JVM
        if setting is None:
            files.append(word)
            continue
        name, equals, value = setting.partition("=")
        if not equals:
            raise serving.OptionError(f"expected NAME=VALUE, got {word} {setting}".rstrip(), word)
        changes[name] = value
    if len(files) > 1:
        raise serving.OptionError(f"expected one properties file, got {' '.join(files)}", "PROPERTIES")
    return files, changes


def _text(files: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the text of the given properties file, else that of the image, which is also written to FINAL_DIR.

    Raises: OptionError for a file that cannot be read, or is not UTF-8.
    """
    try:
        if files:
            return Path(files[0]).read_text(encoding="utf-8")
        text = properties_text(environ, MOUNTED_DIR, DEFAULTS_DIR)
    except OSError as error:
        raise serving.OptionError(f"{error.filename}: {error.strerror}", "PROPERTIES") from None
    except UnicodeDecodeError:
        name = files[0] if files else FILE
        raise serving.OptionError(f"{name}: expected UTF-8 text, found other bytes", "PROPERTIES") from None
    with contextlib.suppress(OSError):  # a copy for readers: the root may be read-only
        (FINAL_DIR / FILE).write_text(text, encoding="utf-8")
    return text


def _on_all_interfaces(advertised: str) -> str:
    """Return listeners for advertised addresses: the same names and ports, on all interfaces."""
    found = []
    for word in advertised.split(","):
        name, _, address = word.strip().partition("://")
        found.append(f"{name}://0.0.0.0:{address.rpartition(':')[2]}")
    return ",".join(found)


def _format(properties: Mapping[str, str], cluster_id: str) -> None:
    """Format the log folders that are not formatted yet. Raises: serving.ServeError."""
    from kbroker.common.configs.config import BrokerConfig
    from kbroker.common.configs.config_def import ConfigError

    try:
        config = BrokerConfig(dict(properties))
    except ConfigError as error:
        raise serving.ServeError(error.explain(), serving.CONFIG_STATUS) from None
    if any(not (folder / "meta.properties").exists() for folder in config.log_dirs):
        _format_new(config, cluster_id)


def _format_new(config: BrokerConfig, cluster_id: str) -> None:
    from kbroker._core.clock import SystemClock
    from kbroker.common.configs.config_quorum import VOTERS, voter_listener
    from kbroker.metadata.log.formatter import FormatError, format_folders, standalone_voter

    has_quorum = not config.is_member and not config.words(VOTERS)
    voters = [standalone_voter(config.node_id, voter_listener(config))] if has_quorum else []
    try:
        format_folders(
            config.log_dirs,
            config.metadata_log_dir,
            cluster_id=cluster_id,
            node_id=config.node_id,
            now_ms=SystemClock().wall_ms(),
            voters=voters,
            skip_formatted=True,
        )
    except FormatError as error:
        raise serving.ServeError(str(error), serving.START_STATUS) from None
    except OSError as error:
        raise serving.ServeError(f"{error.filename}: {error.strerror}", serving.START_STATUS) from None


def lines(broker: Broker) -> Iterator[str]:
    """Yield the lines of a broker that serves: kbroker's, then those that tools wait for in Kafka's output."""
    import time

    node_id = broker.config.node_id
    now_ms = broker.clock.wall_ms()
    stamp = f"{time.strftime('[%Y-%m-%d %H:%M:%S', time.gmtime(now_ms / 1000))},{now_ms % 1000:03}] INFO"
    yield serving.ready_line(broker)
    yield f"{stamp} [BrokerLifecycleManager id={node_id}] Transitioning from RECOVERY to RUNNING. (kbroker.container)"
    yield f"{stamp} [KafkaRaftServer nodeId={node_id}] Kafka Server started (kbroker.container)"
    yield f"{stamp} [KafkaServer id={node_id}] started (kbroker.container)"
    advertised = ",".join(map(str, broker.config.advertised_listeners or broker.config.listeners))
    yield f"{stamp} Kafka broker started with advertised listeners: {advertised} (kbroker.container)"
