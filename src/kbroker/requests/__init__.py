"""Context of a request: the broker's parts that handlers use, and limits of a response."""
