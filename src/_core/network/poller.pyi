from typing import final

@final
class PortablePoller:
    def __init__(self, selector: object) -> None: ...
