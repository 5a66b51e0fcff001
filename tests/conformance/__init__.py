"""A broker's responses to raw requests, compared field by field with those of Apache Kafka 4.3.1.

    python -m tests.conformance check 127.0.0.1:9092 [-k PATTERN]     a broker beside the recording
    python -m tests.conformance record [-k PATTERN]                    start Apache Kafka twice and record it anew
    python -m tests.conformance list [-k PATTERN]                      the cases

A situation (`situations/*.py`) is a short script of requests; it runs in each version and with each parameter that it
names. README.md says how to add one and what a comparison leaves out.
"""
