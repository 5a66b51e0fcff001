"""Load of a client while leaders and coordinators move, run by a program in the client's language.

A program is called with BOOTSTRAP, TOPIC (of PARTITIONS partitions) and COUNT. Its idempotent producer sends the values
0 to COUNT - 1, number N to partition N % PARTITIONS, one every PACE_S seconds; its consumer, in the group TOPIC,
commits automatically and reads until it has each value. It prints "ready" with the first record that it reads, and at
the end one line of JSON: `acked`, `failed` (the errors of records that were not acknowledged) and `read` (different
values).
"""

PARTITIONS = 3
PACE_S = 0.008
