"""The request log as a part of the broker: settings, native core, topic, files and the writer's thread."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.common.configs.config_def import ConfigError, folder_error
from kbroker.common.errors import Errors, ignoring
from kbroker.common.loggers import get_logger
from kbroker.common.request_log_names import ARROW_END, ARROW_SUFFIX, JSON_SUFFIX
from kbroker.common.threads import have_ended, new_thread
from kbroker.metadata.topic_rules import NewTopic
from kbroker.request_log.settings import RequestLogSettings, request_log_settings

if TYPE_CHECKING:  # imported only with a request log, which most brokers do not have
    from kbroker._core.clock import BaseClock
    from kbroker.common.configs.config import BrokerConfig
    from kbroker.common.listeners import Listener
    from kbroker.common.rolling_files import RollingFiles
    from kbroker.metadata.topics import TopicRegistry
    from kbroker.network.connections._connection_quotas import ConnectionQuotas
    from kbroker.network.connections.refusal import Refusal
    from kbroker.quota._client_quotas import ClientQuotaManagers
    from kbroker.request_log._drain import RecordFormat
    from kbroker.request_log._log_core import RequestLogCore, RequestLogRecorder
    from kbroker.request_log.writer import Format, RequestLogWriter

logger = get_logger(__name__)


class RequestLogFigures(NamedTuple):
    """Counts of written and dropped records, bytes in files and topic, and bytes of queued records."""

    written: int = 0
    dropped: int = 0
    written_bytes: int = 0
    queued_bytes: int = 0


class RequestLog:
    """The log of finished requests, if a topic or a folder is configured; otherwise it costs nothing.

    Args: ``api_names``: of the served APIs, by key, as ``Produce``; ``network_threads``: of all listeners, which share
    the buffer.
    Raises: ConfigError.
    Threads: built, started and stopped from one thread; ``flush`` and ``figures`` from any.
    """

    def __init__(
        self, config: BrokerConfig, clock: BaseClock, api_names: Mapping[int, str], network_threads: int
    ) -> None:
        self.settings: RequestLogSettings = request_log_settings(config)
        self._clock = clock
        self._broker = config.node_id
        self._names = {key: kafka_api_name(name) for key, name in api_names.items()}
        self._buffer_bytes = max(self.settings.buffer_bytes // max(network_threads, 1), 4096)
        self._core: RequestLogCore | None = None
        self._writer: RequestLogWriter | None = None
        self._topics: TopicRegistry | None = None
        self._thread: threading.Thread | None = None
        if self.settings.is_on:
            from kbroker.request_log._log_core import RequestLogCore

            self._core = RequestLogCore(clock, self._names, self.settings.sampling)

    def recorder(self, listener: Listener) -> RequestLogRecorder | None:
        """Return the recorder of a listener's network thread, None while the log is off."""
        return None if self._core is None else self._core.recorder(listener.protocol, self._buffer_bytes)

    def observe(self, quotas: ClientQuotaManagers, connections: ConnectionQuotas) -> None:
        """Record verdicts on new connections, and, while there is a log, the charges of counters too."""
        if self._core is None:
            quotas.observe_connections(connections)
        else:
            self._core.observe(quotas, connections, self.settings.has_offsets)

    def start(self, topics: TopicRegistry) -> None:
        """Create the topic if it is absent, and begin to write; call it once topics are loaded.

        Raises: KafkaError if the topic cannot be created; ConfigError if no file can be created, or the topic has other
        data.
        """
        if self._core is None:
            return
        from kbroker.request_log.topic_check import holds_other_records
        from kbroker.request_log.writer import RequestLogWriter

        self._topics = topics
        settings = self.settings
        logs = self._logs() if settings.topic else ()
        if holds_other_records(logs):
            reason = "the topic exists and has other records"
            raise ConfigError(
                "kbroker.request.log.topic", settings.topic, reason, "a topic with nothing else in it, or a new one"
            )
        partitions = len(logs)
        form, sink = self._form(partitions)
        files = self._files(getattr(form, "begin", b"")) if settings.folder else None
        self._writer = RequestLogWriter(
            self._core, sink, form, self._clock, files, self._logs if settings.topic else None
        )
        self._thread = new_thread("request-log-writer", self._writer.run, "request-log")
        self._thread.start()

    def note_refusals(self, refusals: Sequence[tuple[Refusal, int]]) -> None:
        """Record requests whose connections were closed without a response, each with its count."""
        if self._core is not None:
            for refusal, repeated in refusals:
                self._core.note_refusal(refusal, repeated)

    def flush(self) -> None:
        """Write all queued records now, including idle polls of the current second."""
        if self._writer is not None:
            self._writer.flush(unfold=True)

    def stop(self, timeout_s: float) -> None:
        """Write the remaining records and end the thread, after the last request was recorded. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is None or self._thread is None:
            return
        writer.stop()
        if not have_ended([self._thread], timeout_s):
            logger.error("the request log's thread did not end within %.1f s", timeout_s)
        else:
            writer.close()

    @property
    def figures(self) -> RequestLogFigures:
        """Numbers of written and dropped records, and of written and queued bytes."""
        core, writer = self._core, self._writer
        if core is None:
            return RequestLogFigures()
        if writer is None:
            return RequestLogFigures(dropped=core.dropped, queued_bytes=core.queued_bytes)
        return RequestLogFigures(writer.written, writer.dropped, writer.written_bytes, core.queued_bytes)

    def _form(self, partitions: int) -> tuple[Format, RecordFormat]:
        """Return the collector of the bytes to write, and the format that takes the records."""
        wants_lines = bool(self.settings.folder)
        if not self.settings.is_arrow:
            from kbroker.request_log._json_lines import JsonLines

            lines = JsonLines(self._broker, self._names, partitions=partitions, wants_lines=wants_lines)
            return lines, lines
        from kbroker.request_log.arrow_form import ArrowForm  # pyarrow is imported only when needed

        form = ArrowForm(
            self._broker,
            self._names,
            partitions=partitions,
            compression=self.settings.compression,
            wants_lines=wants_lines,
        )
        return form, form.columns

    def _files(self, begin: bytes) -> RollingFiles:
        """Return the rolling files. Args: ``begin``: first bytes of each; for Arrow, the schema of a stream.

        Raises: ConfigError.
        """
        from kbroker.common.rolling_files import RollingFiles

        settings = self.settings
        try:
            return RollingFiles(
                settings.folder,
                ARROW_SUFFIX if settings.is_arrow else JSON_SUFFIX,
                self._clock,
                file_bytes=settings.file_bytes,
                file_count=settings.file_count,
                begin=begin,
                end=ARROW_END if settings.is_arrow else b"",
            )
        except (OSError, ValueError) as error:
            raise folder_error("kbroker.request.log.dir", settings.folder, error) from error

    def _logs(self) -> Sequence[Any]:
        """Return the topic's logs; an absent topic, even a deleted one, is created."""
        assert self._topics is not None
        name = self.settings.topic
        view = self._topics.get(name)
        if view is None:
            from kbroker.request_log.topic_check import LARGEST_BATCH_BYTES

            # Arrow compresses its columns itself.
            packs = self.settings.compression == "lz4" and not self.settings.is_arrow
            compression = "lz4" if packs else "producer"
            configs = {
                "cleanup.policy": "delete",
                "compression.type": compression,
                "max.message.bytes": str(LARGEST_BATCH_BYTES),  # a smaller message.max.bytes applies to clients only
            }
            with ignoring(Errors.TOPIC_ALREADY_EXISTS):
                self._topics.create(NewTopic(name, self.settings.partitions, configs=configs))
            view = self._topics.get(name)
        return () if view is None else view.partitions


def kafka_api_name(name: str) -> str:
    """Return the name in Kafka's request log: ``API_VERSIONS`` for ``ApiVersions``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
