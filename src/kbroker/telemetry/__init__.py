"""Client telemetry (KIP-714): subscriptions of clients, the metrics that they push, and the places that show them."""
