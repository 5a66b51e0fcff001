"""Record batch v2: positions of its header fields and bits of its attributes.

Cython cimports the same names from ``_batch_format.pxd``, which setup.py generates from this file.

Source: ``DefaultRecordBatch.java``.
"""

BATCH_HEADER_BYTES = 61
LENGTH_AT = 8
PARTITION_LEADER_EPOCH_AT = 12
LENGTH_FROM = 12  # the length field counts the bytes from here to the end
MAGIC_AT = 16  # same position in every message format
CRC_AT = 17
CRC_FROM = 21  # the checksum covers the bytes from here to the end
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
RECORD_COUNT_AT = 57

# Attributes, an int16
CODEC_MASK = 0x07  # CompressionType; 5 to 7 are undefined
LOG_APPEND_TIME_BIT = 0x08  # the max timestamp of the batch is the timestamp of every record
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20  # the record is a commit or abort marker
DELETE_HORIZON_BIT = 0x40  # the base timestamp is the time at which tombstones may be deleted
