"""The data pipeline on Apache Spark: sessions, a data source, jobs over the request log, what-if replays.

Needs ``pip install "kbroker[spark]"`` and Java 17 or later; a module here loads PySpark and Arrow only once it is used,
so that the rest of kbroker runs without them. It reaches a broker over the wire only.
"""
