"""The request log: a record of every finished request, made natively, written by a thread of its own."""
