"""The contract of the container images of Apache Kafka and Confluent: environment, scripts, log lines, Kafka's tools.

``python -m kbroker.container`` runs it; the scripts of the image in ``.ci/image/files`` call that.
"""
