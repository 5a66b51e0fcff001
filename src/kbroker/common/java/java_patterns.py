"""Validation of regular expressions in Java's syntax by Python's compiler."""

from __future__ import annotations

import re

#: Java's syntax that Python's compiler does not accept, with a replacement of the same form.
_JAVA_ONLY = (
    (re.compile(r"\\Q.*?(?:\\E|\Z)", re.DOTALL), "q"),  # quoted
    (re.compile(r"\\[pP](?:\{\w+\}|\w)"), "p"),  # a class of Unicode
    (re.compile(r"\\[hHRXVGzZ]"), "z"),
    (re.compile(r"\\k<(\w+)>"), r"(?P=\1)"),
    (re.compile(r"\(\?<(?=[A-Za-z])"), "(?P<"),  # a named group
    (re.compile(r"\(\?>"), "(?:"),  # an atomic group: in Python from 3.11 on
    (re.compile(r"(?<!\\)([*+?}])\+"), r"\1"),  # possessive: likewise
)


def is_java_pattern(text: str) -> bool:
    """Return whether ``Pattern.compile`` accepts the text, as far as Python's ``re`` can judge."""
    for java, python in _JAVA_ONLY:
        text = java.sub(python, text)
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return False
    return True
