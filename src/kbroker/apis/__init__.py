"""One file per API that Python serves, prefixed with its key.

Each has ``handle(ctx, body, request)``, which returns the response's body, and ``failure(body, error, request)``, which
returns a response with the same error for all items of the request.
"""
