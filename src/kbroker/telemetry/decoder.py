"""The packages that decode client metrics: the broker checks at its start that they exist, without an import."""

from __future__ import annotations

import os
import sys
from functools import cache

INSTALL = "pip install 'kbroker[telemetry]'"

_FILES = (
    os.path.join("google", "protobuf", "message.py"),
    os.path.join("opentelemetry", "proto", "metrics", "v1", "metrics_pb2.py"),
)


@cache
def has_decoder() -> bool:
    """Return whether opentelemetry-proto and protobuf are installed."""
    return all(any(os.path.exists(os.path.join(place, file)) for place in sys.path) for file in _FILES)
