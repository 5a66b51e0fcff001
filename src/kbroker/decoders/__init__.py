"""Decoders of the keys and values of records, for people, and filters of decoded records.

Optional packages (``pip install "kbroker[decoders]"``) are imported when a record needs them.
"""
