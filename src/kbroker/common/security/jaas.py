"""One line of a JAAS configuration, as in Kafka's ``sasl.jaas.config``: a login module and its options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
USER_PREFIX = "user_"

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(r"\s*(?:(=)|(;)|\"((?:\\.|[^\"\\])*)\"|'((?:\\.|[^'\\])*)'|([^\s=;\"']+))", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.DOTALL)
_CONTROLS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FORM = 'org.apache...LoginModule required name="value" ... ;'


class JaasEntry(NamedTuple):
    """A login module and its options."""

    module: str
    options: Mapping[str, str]

    def users(self) -> dict[str, str]:
        """Users with their passwords: the options ``user_NAME``."""
        return {name[len(USER_PREFIX) :]: value for name, value in self.options.items() if name.startswith(USER_PREFIX)}

    def __repr__(self) -> str:
        return f"JaasEntry({self.module!r}, ...)"  # options hold passwords


def parse_jaas(text: str) -> JaasEntry:
    """Return the single entry of a line.

    Raises: ValueError with the reason, but never with a value.
    """
    tokens = _tokens(text)
    if len(tokens) < 3 or not tokens[0][1] or tokens[1][1].lower() not in _FLAGS:
        raise ValueError(f"expected {_FORM}")
    if tokens[-1] != (";", ""):
        raise ValueError("the entry does not end with ';'")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    if len(rest) % 3:
        raise ValueError(f"options must be name=value, expected {_FORM}")
    for number in range(0, len(rest), 3):
        (_, name), (equals, _), (mark, value) = rest[number : number + 3]
        if equals != "=" or mark or not name:
            raise ValueError(f"options must be name=value, expected {_FORM}")
        options[name] = value
    return JaasEntry(tokens[0][1], options)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Return words and marks: a mark is ("=" or ";", ""), a word ("", word). Raises: ValueError."""
    found: list[tuple[str, str]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError("a quotation mark is missing")
        at = match.end()
        equals, semicolon, double, single, word = match.groups()
        if equals or semicolon:
            found.append((equals or semicolon, ""))
        else:
            quoted = double if double is not None else single
            found.append(("", word if quoted is None else _ESCAPE.sub(_unescaped, quoted)))
    return found


def _unescaped(escape: re.Match[str]) -> str:
    """Return the character of an escape in quotation marks: octal, a control character, or itself."""
    octal, char = escape.groups()
    return chr(int(octal, 8)) if octal else _CONTROLS.get(char, char)
