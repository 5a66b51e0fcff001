"""Comparison of a broker's responses to raw requests, field by field, with those of Apache Kafka 4.3.1.

    python -m tests.conformance check 127.0.0.1:9092 [-k PATTERN]     compare a broker with the recording
    python -m tests.conformance record [-k PATTERN]                    start Apache Kafka twice and record its responses
    python -m tests.conformance list [-k PATTERN]                      list the cases

A situation (`situations/*.py`) is a short script of requests, which is run in each version and with each parameter that
it names. README.md explains how to add a situation and which values a comparison leaves out.
"""
