from typing import Any

DEFAULTS: dict[str, Any]
