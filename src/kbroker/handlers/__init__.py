"""Request handlers: the table of APIs, the threads that execute requests, native and in Python."""
