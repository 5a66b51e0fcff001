"""The member: this node as a broker of a cluster with controllers of Apache Kafka (``process.roles=broker``).

The connections of its parts, and the interface for request handlers:

- ``ApiContext.member`` is a `Member`, None in a broker that is its own controller.
- ``ApiContext.controller`` has the same readers in both cases (``image``, ``publishers``, ``node_id``, ``cluster_id``,
  ``epoch``, ``end_offset``, ``kraft_version``). In a member it is a `RemoteMetadata`: the image after the records of
  the controllers, and `change` raises KafkaError NOT_CONTROLLER. Parts of the broker follow the image as publishers,
  each with the deltas that concern it in the order of the log, on the thread of the metadata loader.
- ``Member.forwarding`` is the `ControllerChannel` of forwarded requests, one of several: a channel has one connection,
  one request in flight, and follows the leader of the quorum. ``send(key, body, complete)`` returns at once;
  ``complete`` gets an `Outcome` on the channel's thread. ``versions`` are those of the controller's ApiVersions
  response.
- Every partition of the image is in ``ApiContext.topics``, with None as its log: no replica is opened yet. Leaders,
  replicas and brokers of the cluster are in ``ApiContext.image``.
"""
