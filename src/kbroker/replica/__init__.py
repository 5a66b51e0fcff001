"""Partitions as request handlers see them: the table of topics with their logs."""
