"""Clients and their rights: SASL mechanisms, credentials, delegation tokens, principals, ACLs."""
