"""One file per API that Python serves, prefixed with its key.

Each has ``handle(ctx, body, request)``, which returns the response's body, and ``failure(body, error, request)``, which
returns the response that reports one error for everything asked.
"""
