"""The compiled cores: clocks, timing wheel, purgatory, memory pool, request queue, network loop.

The package contains nothing of Kafka except its length-prefixed framing. Other packages may ``cimport`` the shipped
``.pxd``.
"""
