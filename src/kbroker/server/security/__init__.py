"""Who the clients are: SASL mechanisms and their users, TLS, and the names that certificates give."""
