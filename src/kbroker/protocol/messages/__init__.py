"""Wire tables: one JSON file per API (fields, types and the versions they live in), read by ``protocol.schema``.

``index.json`` names every API with its version ranges; ``headers.json`` and ``data.json`` hold what is no API.
``versions`` are the versions of a field, ``nullable`` those that allow null, ``tag`` moves it to the tagged section;
``default`` is what a reader sees when the field is absent, ``ignorable`` drops a value when a version lacks it.
Facts of Apache Kafka's message definitions.
"""
