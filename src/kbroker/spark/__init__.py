"""The data pipeline on Apache Spark: sessions, a data source, jobs over the request log, what-if replays.

Needs ``pip install "kbroker[spark]"`` and Java 17 or later; the rest of kbroker runs without PySpark and
Arrow, and imports modules of this package only to use them. It reaches a broker over the wire only.
"""
