"""The compiled cores: clocks, timing wheel, purgatory, memory pool, request queue, network loop.

Nothing in this package knows Kafka beyond length-prefixed framing. Other packages may ``cimport`` the shipped ``.pxd``.
"""
