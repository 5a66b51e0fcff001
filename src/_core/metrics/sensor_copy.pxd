"""A sensor as it is at one moment: what is read of the copy, or recorded to it, does nothing to the original.

To measure a sensor empties the samples that are too old, and to check a bucket fills it: who only wants to look does so
on a copy, with the functions of sensor_core, and gets the numbers that the original would give.
"""
from kbroker._core.metrics.sensor_core cimport SensorCore

# Under the lock of the original, for as long as the copying of its samples takes. Without parents; counted once, for
# the caller alone. NULL: memory is out.
cdef SensorCore *sensor_copy(SensorCore *sensor) noexcept nogil
