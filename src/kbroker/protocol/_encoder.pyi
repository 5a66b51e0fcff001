from typing import Any, Final, final

KINDS: Final[dict[str, int]]

_Body = dict[str, Any]
_FieldSpec = tuple[str, str, bool, bool, bool, bool, bool, int, Any, "Plan | None"]

@final
class Plan:
    @property
    def name(self) -> str: ...
    @property
    def flexible(self) -> bool: ...
    @property
    def min_bytes(self) -> int: ...
    def __new__(cls, name: str, flexible: bool, fields: list[_FieldSpec]) -> Plan: ...
    def default(self) -> _Body: ...

def encode(
    plan: Plan, body: _Body, prefix: bytes = b"", framed: bool = False, longest_string: int = 0x7FFFFFFF
) -> bytes: ...
