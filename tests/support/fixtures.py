"""Fixtures in one line: values, brokers and other context managers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import pytest

from kbroker.metadata.topic_rules import NewTopic


def fixture_of(
    make: Callable[..., Any],
    *arguments: object,
    topics: Mapping[str, int] | None = None,
    scope: Literal["function", "module"] = "function",
) -> object:
    """Return a fixture with the name of its variable; its value is ``make(*arguments)``, opened if ``with`` can do so.

    With ``broker = fixture_of(VirtualBroker, SETTINGS, topics={"t": 2})`` each test of a module has its own broker.

    Args:
        make: a class or function; a lambda where a test changes the arguments.
        topics: partitions by topic, which are created in a broker of this process.
        scope: "module" for one that the tests of a module share.
    """

    @pytest.fixture(scope=scope)
    def opened() -> Iterator[Any]:
        made = make(*arguments)
        with made if isinstance(made, AbstractContextManager) else nullcontext(made) as value:
            for name, partitions in (topics or {}).items():
                value.context.topics.create(NewTopic(name, partitions))
            yield value

    return opened
