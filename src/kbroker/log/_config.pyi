from collections.abc import Mapping
from typing import Any

DEFAULTS: dict[str, Any]
INT64_MIN: int
MIN_INDEX_BYTES: int

def check_config(values: Mapping[str, Any]) -> None: ...
