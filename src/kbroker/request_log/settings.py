"""Settings of the request log, from the broker's configuration."""

from typing import NamedTuple

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.topic_names import INTERNAL_TOPICS


class RequestLogSettings(NamedTuple):
    """Settings of the request log. See ``kbroker.request.log.*`` in docs/configuration.md.

    An empty ``topic`` or ``folder`` means none.
    """

    topic: str = ""
    partitions: int = 1
    compression: str = "none"
    folder: str = ""
    is_arrow: bool = False
    sampling: float = 1.0
    has_offsets: bool = False
    buffer_bytes: int = 16_777_216
    file_bytes: int = 134_217_728
    file_count: int = 10

    @property
    def is_on(self) -> bool:
        """Return whether there is a topic or a folder to write to."""
        return bool(self.topic or self.folder)


def request_log_settings(config: BrokerConfig) -> RequestLogSettings:
    """Return the request log's settings of a configuration.

    Raises: ConfigError for a topic with other writers, or if Arrow is configured but not installed.
    """
    prefix = "kbroker.request.log."
    sampling = config.value(prefix + "sampling")
    assert isinstance(sampling, (int, float))
    settings = RequestLogSettings(
        topic=config.text(prefix + "topic"),
        partitions=config.integer(prefix + "partitions"),
        compression=config.text(prefix + "compression"),
        folder=config.text(prefix + "dir"),
        is_arrow=config.text(prefix + "format") == "arrow",
        sampling=float(sampling),
        has_offsets=config.value(prefix + "offsets") is True,
        buffer_bytes=config.integer(prefix + "buffer.bytes"),
        file_bytes=config.integer(prefix + "file.bytes"),
        file_count=config.integer(prefix + "file.count"),
    )
    if settings.topic in INTERNAL_TOPICS:
        raise ConfigError(prefix + "topic", settings.topic, "it is the topic of another part", "__request_log")
    if settings.is_on and settings.is_arrow and not _has_pyarrow():
        reason = "pyarrow is not installed: pip install 'kbroker[arrow]', or use json"
        raise ConfigError(prefix + "format", "arrow", reason, "json")
    return settings


def _has_pyarrow() -> bool:
    import importlib.util

    return importlib.util.find_spec("pyarrow") is not None
