"""One file per API that Python serves, prefixed with its key.

Each has ``handle(ctx, body, request)``, which returns the response's body. Where the error of a whole request is not in
the response's own ``ErrorCode``, ``failure(body, error, request)`` returns it, as the error of each item.
"""
