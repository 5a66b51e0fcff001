from typing import Any, Final

from typing_extensions import Buffer

from kbroker.protocol._encoder import Plan

MAX_ELEMENTS: Final[int]
MAX_STRING_BYTES: Final[int]

_Body = dict[str, Any]

def decode(plan: Plan, data: Buffer, offset: int = 0, max_elements: int = 2_000_000) -> _Body: ...
def decode_from(plan: Plan, data: Buffer, offset: int = 0) -> tuple[_Body, int]: ...
def skip_tags(data: Buffer, offset: int = 0) -> int: ...
