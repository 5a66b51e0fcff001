"""The report of a request log: one HTML page without other files; its plots are inline SVG."""
