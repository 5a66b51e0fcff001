"""The pages, a subject a file: each function reads the broker and returns what its template shows."""
