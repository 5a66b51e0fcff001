"""Kinds of resources that have configs. Source: ``ConfigResource.Type``."""

from __future__ import annotations

import enum


class ConfigResourceType(enum.IntEnum):
    """Kinds of resources that have configs, as numbered in requests and in metadata records."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
