"""Views of a running broker: metrics, the HTTP port for operators, the X-ray."""
