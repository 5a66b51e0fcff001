"""The request log: a record of every finished request, made natively, written by its own thread."""
