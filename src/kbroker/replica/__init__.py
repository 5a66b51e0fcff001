"""Partitions for request handlers: the table of topics with their logs."""
