"""The contract of the container images of Apache Kafka and Confluent: environment, scripts, log lines, Kafka's tools.

The scripts of the image, in ``.ci/image/files``, call ``python -m kbroker.container``.
"""
