from collections.abc import Mapping
from typing import Any

DEFAULTS: dict[str, Any]

def check_config(values: Mapping[str, Any]) -> None: ...
