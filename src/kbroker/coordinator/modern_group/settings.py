"""Settings of groups of the newer protocols: the broker's, and the bounds of those of a single group.

Source: ``GroupConfig``, ``GroupConfigManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

#: The configs of a group itself, as stored: strings.
GroupConfigs = Callable[[str], Mapping[str, str]]


def no_group_configs(group_id: str) -> Mapping[str, str]:
    """Return no configs, for any group."""
    return {}


class Limits(NamedTuple):
    """A setting of the broker, and the bounds of a group's own value."""

    default: int
    least: int
    most: int

    def of(self, own: str | None) -> int:
        """Return the value for a group. ``own``: its own value, which is limited to the bounds."""
        return self.default if own is None else min(max(int(own), self.least), self.most)
