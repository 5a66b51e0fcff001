"""Data for every page: the broker, its last ten minutes, and the renderer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from kbroker._core.clock import BaseClock
from kbroker.broker import Broker
from kbroker.console import ROOT as ROOT
from kbroker.console.history import History
from kbroker.requests.context import ApiContext

LONGEST_HREF = 60_000  # characters; a request's first line may have 65,536


class Site(NamedTuple):
    """Data of the console. ``may_edit``: true if quotas can be changed; ``started_ms``: start time, since 1970."""

    broker: Broker
    history: History
    may_edit: bool
    started_ms: int

    @property
    def context(self) -> ApiContext:
        """The broker's parts."""
        return self.broker.context

    @property
    def clock(self) -> BaseClock:
        """The broker's clock."""
        return self.broker.clock


class View(NamedTuple):
    """A page to be rendered: its title, template and values."""

    title: str
    template: str
    values: Mapping[str, Any]
    status: int = 200


class Download(NamedTuple):
    """Bytes that the browser saves as a file."""

    data: bytes
    file_name: str


class Json(NamedTuple):
    """A value for a script of a page."""

    value: Any


def address(page: str, **query: object) -> str:
    """Return the address of a page; parameters that are None or empty are left out."""
    kept = {name.rstrip("_"): value for name, value in query.items() if value is not None and value != ""}
    return f"{ROOT}/{page}" + (f"?{urlencode(kept)}" if kept else "")


def short_enough(href: str) -> str:
    """Return the address; empty if it is too long for the HTTP port: names may have 32,767 bytes, each as %XX."""
    return href if len(href) <= LONGEST_HREF else ""
