"""The pages, one subject a file: each function reads the broker and returns the values of its template."""
