"""Several limits judged by one call with one response.

First every strict limit is checked; if one refuses, nothing at all is recorded. Then everything is recorded: strict and
unchecked charges without a check, permissive ones with it. All sensors of the call are locked meanwhile (in the order
of their addresses), so no other record comes between the check and the record; parents are recorded afterwards.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.metrics.sensor_core cimport SensorCore, Violation

cdef enum:
    LARGEST_CHARGES = 16

cdef enum ChargeModeNumber:
    CHARGE_PERMISSIVE = 0       # recorded, then checked: a violation is a delay
    CHARGE_STRICT = 1           # checked, then recorded: a violation refuses the whole call
    CHARGE_UNCHECKED = 2        # recorded only

cdef enum ChargeResult:
    CHARGE_ACCEPTED = 0         # everything is recorded (the delay may still be above 0)
    CHARGE_REFUSED = 1          # nothing is recorded
    CHARGE_TOO_MANY = -1        # more than LARGEST_CHARGES: nothing done

cdef struct Charge:
    SensorCore *sensor          # borrowed; NULL: no such limit, skipped
    double value                # weight
    int64_t cap_ms              # longest delay of this limit, or NO_CAP
    int32_t mode
    # the response
    bint is_violated
    int64_t throttle_ms         # of this limit, capped; 0 if it is kept or its violation has no formula
    Violation violation         # valid if is_violated

# throttle_ms becomes the longest delay of all limits (of the strict ones, if the call is refused).
cdef int sensors_charge(Charge *charges, int32_t count, int64_t now_ms, int64_t *throttle_ms) noexcept nogil
