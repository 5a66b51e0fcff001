"""Wire tables, read by ``protocol.schema``: one JSON file per API with its fields, their types and versions.

``index.json`` names every API with its version ranges. ``metadata.json`` contains the records of the metadata log,
``headers.json`` and ``data.json`` the other structs.
``versions`` are the versions of a field, ``nullable`` those that allow null, ``tag`` moves it to the tagged section;
``default`` is the value of an absent field, ``ignorable`` drops a value if a version lacks the field. Facts of Apache
Kafka's message definitions.
"""
