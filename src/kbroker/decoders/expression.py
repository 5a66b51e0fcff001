"""Filters of records by a JMESPath expression, limited in cost.

JMESPath (the language of the AWS command line; the package is pure Python) was chosen because it has no loops,
recursion, regular expressions or definitions: work grows with the expression and the record only. A program for jq can
run forever inside one C call, and filters of JSONPath run Python's regular expressions. ``_check`` refuses expressions
that build new lists or objects, whose size could double with each step; MAX_STEPS limits all others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.decoders.decoded import MissingPackageError

if TYPE_CHECKING:
    from kbroker.decoders.decoders import DecodedRecord

MAX_CHARACTERS = 1000
MAX_STEPS = 100_000  # visited nodes and processed elements for one record: about 0.1 s
_STRING_STEP = 32  # characters that a function processes in one step
MAX_STRING = 1 << 20  # characters of a string that a function makes
NAMES = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")


#: Nodes that evaluate all children on the same object; other nodes evaluate only the first child on it.
_OF_THE_SAME = ("comparator", "or_expression", "and_expression", "not_expression", "function_expression")


class ExpressionError(ValueError):
    """Expression that is malformed, or too costly for a record; the message is one line."""


class Expression:
    """A filter of records by {key, value, headers, topic, partition, offset, timestamp}.

    Key and value are JSON values where the record has JSON or a decoder makes it, else text; ``headers`` is an object
    of texts; ``timestamp`` is milliseconds since 1970.

    Args: ``text``: such as ``value.amount > `100` && headers.type == 'order'``.
    Raises: ExpressionError; MissingPackageError.
    Threads: any.
    """

    def __init__(self, text: str) -> None:
        try:
            import jmespath.exceptions
            from jmespath.parser import Parser
        except ModuleNotFoundError as error:
            raise MissingPackageError("a filter expression", error.name) from None
        if len(text) > MAX_CHARACTERS:
            raise ExpressionError(f"expected an expression of at most {MAX_CHARACTERS} characters, got {len(text)}")
        self._evaluator = _evaluator()
        try:
            self._tree = Parser().parse(text).parsed
            self._check(self._tree, sees_record=True)
        except jmespath.exceptions.JMESPathError as error:
            raise ExpressionError(f"expected a JMESPath expression: {' '.join(str(error).split())}") from None
        except RecursionError:
            raise ExpressionError("the expression is nested too deep") from None

    def matches(self, record: DecodedRecord) -> bool:
        """Return whether the expression is true, or a value that is not empty, for a record.

        Raises: ExpressionError if the evaluation takes more than MAX_STEPS.
        """
        return self.matches_document(document(record))

    def matches_document(self, values: Mapping[str, Any]) -> bool:
        """Return whether the expression is true for an object. Raises: as matches."""
        evaluator = self._evaluator()
        try:
            found = evaluator.visit(self._tree, values)
        except ExpressionError:
            raise
        except (ValueError, TypeError, OverflowError):  # a function got a value of a type that it does not accept
            return False
        except RecursionError:
            raise ExpressionError("a value is nested too deep for the expression") from None
        return not (found is None or found is False or found in ("", [], {}))

    def _check(self, node: Mapping[str, Any], sees_record: bool) -> None:
        """Check a node. Args: ``sees_record``: whether its names are fields of the record, not of a part of it."""
        kind, children = node["type"], node["children"]
        if kind in ("multi_select_list", "multi_select_dict"):
            raise ExpressionError("[a, b] and {a: b} make new values, which a filter does not need; write a `[...]`")
        if kind == "function_expression":
            self._check_call(node["value"], len(children))
        if sees_record and kind == "field" and node["value"] not in NAMES:
            raise ExpressionError(f"expected one of {', '.join(NAMES)}, got {node['value']!r}")
        for number, child in enumerate(children):
            if isinstance(child, dict):  # the numbers of a slice are not nodes
                self._check(child, sees_record and (kind in _OF_THE_SAME or (number == 0 and kind != "expref")))

    def _check_call(self, name: str, given: int) -> None:
        known = self._evaluator.known_functions
        if name not in known:
            raise ExpressionError(f"expected a function of JMESPath, got {name}(); known: {', '.join(sorted(known))}")
        parameters = known[name]["signature"]
        variadic = bool(parameters and parameters[-1].get("variadic"))
        if given < len(parameters) or (given > len(parameters) and not variadic):
            raise ExpressionError(f"{name}() takes {len(parameters)} arguments, got {given}")


def document(record: DecodedRecord) -> dict[str, Any]:
    """Return a decoded record as the object of an expression."""
    return {
        "key": _value(record.key),
        "value": _value(record.value),
        "headers": {name: None if data is None else data.decode("utf-8", "replace") for name, data in record.headers},
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }


def _value(part: Any) -> Any:
    try:
        return None if part is None else part.value
    except (ValueError, RecursionError):  # an integer of more digits than Python converts
        return part.text


def _short(text: str, length: int, function: str) -> str:
    if length > MAX_STRING:
        raise ExpressionError(f"{function}() makes more than {MAX_STRING:,} characters")
    return text


def _steps(value: Any) -> int:
    """Return the steps of a function for one argument or result."""
    return len(value) // (_STRING_STEP if isinstance(value, str) else 1) if isinstance(value, str | list | dict) else 0


def _evaluator() -> Any:
    from jmespath.functions import Functions, signature
    from jmespath.visitor import Options, TreeInterpreter

    class Limited(Functions):  # type: ignore[misc,unused-ignore]
        """The functions of JMESPath, with limits where a string can grow: each to_string doubles the backslashes."""

        @signature({"types": []})  # type: ignore[untyped-decorator,unused-ignore]
        def _func_to_string(self, arg: Any) -> str:
            text = arg if isinstance(arg, str) else json.dumps(arg, separators=(",", ":"), ensure_ascii=False)
            return _short(text, len(text), "to_string")

        @signature({"types": ["string"]}, {"types": ["array-string"]})  # type: ignore[untyped-decorator,unused-ignore]
        def _func_join(self, separator: str, array: list[str]) -> str:
            _short("", len(separator) * len(array) + sum(map(len, array)), "join")
            return separator.join(array)

    functions = Limited()

    class Evaluator(TreeInterpreter):  # type: ignore[misc,unused-ignore]
        """An evaluation of one record."""

        known_functions = functions.FUNCTION_TABLE

        def __init__(self) -> None:
            super().__init__(Options(custom_functions=functions))
            self._left = MAX_STEPS

        def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
            """Visit a node, if the record has steps left."""
            self._spend(1)
            return super().visit(node, *args, **kwargs)

        def visit_function_expression(self, node: Any, value: Any) -> Any:
            """Call a function, which may process each element of its arguments and of its result."""
            arguments = [self.visit(child, value) for child in node["children"]]
            self._spend(sum(map(_steps, arguments)))
            found = self._functions.call_function(node["value"], arguments)
            self._spend(_steps(found))
            return found

        def _spend(self, steps: int) -> None:
            self._left -= steps
            if self._left < 0:
                raise ExpressionError(f"the expression takes more than {MAX_STEPS:,} steps for one record")

    return Evaluator
