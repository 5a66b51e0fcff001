"""Settings of a container: the environment and the mounted ``server.properties``, by the rules of Kafka's images.

Source: ``KafkaDockerWrapper``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FILE = "server.properties"
DEFAULTS_DIR = Path("/etc/kafka/docker")
MOUNTED_DIR = Path("/mnt/shared/config")
FINAL_DIR = Path("/opt/kafka/config")
PREFIX = "KAFKA_"
NOT_SETTINGS = frozenset(
    {
        "KAFKA_VERSION",
        "KAFKA_HEAP_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_OPTS",
        "KAFKA_JMX_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_JMX_HOSTNAME",
    }
)
#: Variables for the scripts of Kafka's images. Kafka's wrapper makes settings of them, too, which Kafka ignores.
OF_THE_SCRIPTS = frozenset(
    {
        "KAFKA_JMX_PORT",
        "KAFKA_SSL_KEYSTORE_FILENAME",
        "KAFKA_SSL_KEYSTORE_CREDENTIALS",
        "KAFKA_SSL_KEY_CREDENTIALS",
        "KAFKA_SSL_TRUSTSTORE_FILENAME",
        "KAFKA_SSL_TRUSTSTORE_CREDENTIALS",
    }
)


def environment_lines(environ: Mapping[str, str]) -> list[str]:
    """Return the lines of ``server.properties`` for the variables ``KAFKA_*``.

    ``_`` stands for a full stop, ``__`` for an underscore, ``___`` for a hyphen.
    """
    return [
        f"{_key(name)}={value}"
        for name, value in environ.items()
        if is_of_kafka(name) and name not in NOT_SETTINGS | OF_THE_SCRIPTS
    ]


def is_of_kafka(name: str) -> bool:
    """Return whether a variable belongs to Kafka's images; ``KAFKA_CFG_*`` is read by `kbroker serve`."""
    return name.startswith(PREFIX) and not name.startswith("KAFKA_CFG_")


def _key(name: str) -> str:
    return name.replace(PREFIX, "").lower().replace("_", ".").replace("...", "-").replace("..", "_")


def properties_text(
    environ: Mapping[str, str], mounted_dir: Path | None = None, defaults_dir: Path | None = None
) -> str:
    """Return the text of the final ``server.properties``: the mounted file, then the environment, else the defaults.

    Raises: OSError, UnicodeDecodeError for an unreadable file.
    """
    lines = environment_lines(environ)
    text = "".join(f"{line}\n" for line in lines)
    if mounted_dir is not None and (mounted_dir / FILE).exists():
        text = f"{(mounted_dir / FILE).read_text(encoding='utf-8')}\n{text}"
    if not text.strip() and defaults_dir is not None:
        text = (defaults_dir / FILE).read_text(encoding="utf-8")
    return text
