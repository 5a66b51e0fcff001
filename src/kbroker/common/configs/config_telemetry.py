"""Broker keys about client telemetry (KIP-714)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common.configs.config_def import ConfigError, ConfigKey, between, key

if TYPE_CHECKING:
    from kbroker.common.configs.config import BrokerConfig

ENDPOINT, LOG_DIR = "kbroker.telemetry.otlp.endpoint", "kbroker.telemetry.log.dir"

TELEMETRY_KEYS: tuple[ConfigKey, ...] = (
    key("telemetry.max.bytes", "int", 1_048_576,
        "Maximum bytes of the metrics that a client pushes in one request, before and after decompression.",
        between(1), importance="low"),
    key(ENDPOINT, "password", None,  # its query may have a secret
        "URL of an OTLP endpoint (HTTP, protobuf) that gets the metrics that clients push, such as "
        "http://collector:4318; without a path, /v1/metrics. Unset or empty: they are not forwarded."),
    key("kbroker.telemetry.otlp.queue.bytes", "long", 8_388_608,
        "Bytes of pushed metrics that may wait for the OTLP endpoint; further ones are dropped, counted and logged.",
        between(1_048_576, 1 << 30)),
    key("kbroker.telemetry.series.bytes", "long", 33_554_432,
        "Bytes of the latest values of the clients' metrics, which the console and /metrics show; further series are "
        "left out and counted.", between(1_048_576, 1 << 30)),
    key(LOG_DIR, "string", "",
        "Folder of rolling files with one JSON object for each push of a client, which kbroker pipeline clients "
        "reads. It may be that of the request log, whose sizes of files it has. Empty: no files."),
)  # fmt: skip


def check_telemetry(config: BrokerConfig) -> None:
    """Check the endpoint. Raises: ConfigError."""
    endpoint = config.text(ENDPOINT)
    if not endpoint:
        return
    import urllib.parse  # a start without an endpoint does not need it

    try:
        url = urllib.parse.urlsplit(endpoint)
        is_usable = url.scheme in ("http", "https") and url.port != 0 and url.username is None
        is_usable = is_usable and bool((url.hostname or "").encode("idna")) and (url.path + url.query).isascii()
    except ValueError:
        is_usable = False
    if not is_usable or not endpoint.isprintable() or " " in endpoint:
        raise ConfigError(ENDPOINT, "[hidden]", "Not the URL of an HTTP server", "http://host:port")
