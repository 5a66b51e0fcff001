"""The report of a request log: one HTML page that needs nothing else, its plots inline SVG."""
