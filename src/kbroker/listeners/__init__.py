"""Listeners: endpoints, TLS and SASL, connection limits, and the log of refused connections."""
