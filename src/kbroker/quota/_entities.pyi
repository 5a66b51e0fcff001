from typing import Final

class _DefaultEntity: ...

DEFAULT_ENTITY: Final[_DefaultEntity]

def sanitize(name: str) -> str: ...
