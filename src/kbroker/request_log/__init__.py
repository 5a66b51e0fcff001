"""The request log: a record of every finished request, created natively, written by its own thread."""
