"""One call for all limits of a request: nothing is recorded where a strict one refuses.

Source: KIP-599 (strict and permissive), ``ControllerMutationQuotaManager``; the largest of several delays as
``KafkaApis`` takes it.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t

from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport borrow_clock
from kbroker._core.metrics.metric cimport checked_time
from kbroker._core.metrics.sensor cimport Sensor
from kbroker._core.metrics.sensor_core cimport (
    NO_CAP, RECORD_VIOLATED, SensorCore, metric_has_throttle, sensor_check_locked, sensor_record_locked,
    sensor_record_parents,
)
from kbroker._core.sync cimport atomic_store, mutex_lock, mutex_unlock

from typing import NamedTuple


cdef inline int32_t in_order(Charge *charges, int32_t count, SensorCore **ordered) noexcept nogil:
    """The sensors of the charges, each once, by address."""
    cdef int32_t found = 0
    cdef int32_t i, at, moved
    cdef SensorCore *sensor
    for i in range(count):
        sensor = charges[i].sensor
        if sensor is NULL:
            continue
        at = found
        while at > 0 and <size_t>ordered[at - 1] > <size_t>sensor:
            at -= 1
        if at > 0 and ordered[at - 1] is sensor:
            continue
        found += 1
        for moved in range(found - 1, at, -1):
            ordered[moved] = ordered[moved - 1]
        ordered[at] = sensor
    return found


cdef inline void judge(Charge *charge, int result, int64_t *longest_ms) noexcept nogil:
    """Write a charge's answer, its violation having been filled in."""
    charge.is_violated = result == RECORD_VIOLATED
    charge.throttle_ms = 0
    if not charge.is_violated or charge.violation.throttle_ms < 0:
        return
    charge.throttle_ms = charge.violation.throttle_ms
    if 0 <= charge.cap_ms < charge.throttle_ms:
        charge.throttle_ms = charge.cap_ms
    if charge.throttle_ms > longest_ms[0]:
        longest_ms[0] = charge.throttle_ms


cdef int sensors_charge(Charge *charges, int32_t count, int64_t now_ms, int64_t *throttle_ms) noexcept nogil:
    cdef SensorCore *ordered[LARGEST_CHARGES]
    cdef int32_t sensors, i
    cdef bint is_refused = False
    cdef Charge *charge
    throttle_ms[0] = 0
    if count > LARGEST_CHARGES:
        return CHARGE_TOO_MANY
    sensors = in_order(charges, count, ordered)
    for i in range(sensors):
        mutex_lock(&ordered[i].lock)
    for i in range(count):
        charge = &charges[i]
        charge.is_violated = False
        charge.throttle_ms = 0
        if charge.sensor is not NULL and charge.mode == CHARGE_STRICT:
            judge(charge, sensor_check_locked(charge.sensor, now_ms, &charge.violation), throttle_ms)
            is_refused = is_refused or charge.is_violated
    if not is_refused:
        for i in range(count):
            charge = &charges[i]
            if charge.sensor is NULL or not charge.sensor.records:
                continue
            atomic_store(&charge.sensor.last_record_ms, now_ms)
            sensor_record_locked(charge.sensor, charge.value, now_ms)
            if charge.mode == CHARGE_PERMISSIVE:
                judge(charge, sensor_check_locked(charge.sensor, now_ms, &charge.violation), throttle_ms)
    for i in range(sensors):
        mutex_unlock(&ordered[i].lock)
    if is_refused:
        return CHARGE_REFUSED
    for i in range(count):      # as in a record: after the locks, and not where a check has failed
        charge = &charges[i]
        if charge.sensor is NULL or charge.is_violated:
            continue
        if charge.sensor.records and charge.sensor.parent_count:
            judge(charge, sensor_record_parents(
                charge.sensor, charge.value, now_ms, charge.mode == CHARGE_PERMISSIVE, &charge.violation), throttle_ms)
    return CHARGE_ACCEPTED


MODES = ("permissive", "strict", "unchecked")


class ChargeDecision(NamedTuple):
    """Result of a call of ``charge``.

    ``accepted``: False if a strict limit refused, and nothing was recorded. ``throttle_time_ms``: the longest delay.
    ``throttle_times_ms``: that of each limit, in their order; None where it is violated by a metric without a formula.
    ``violated``: per limit.
    """

    accepted: bool
    throttle_time_ms: int
    throttle_times_ms: tuple
    violated: tuple


def charge(charges, time_ms=None, *, clock=None):
    """Charge several sensors at once.

    Args:
        charges: up to 16 tuples of (sensor, value), (sensor, value, mode) or (sensor, value, mode, max_throttle_ms).
            value: the weight; below zero gives back. mode: "permissive" (the default: recorded, then checked), "strict"
            (checked first; a violation refuses the whole call) or "unchecked". A sensor that appears twice is checked
            strictly before either is recorded. None as a sensor is no limit.
        time_ms: milliseconds since 1970; None asks ``clock`` (None: the process's system clock).
    Returns: a ChargeDecision.
    Raises: ValueError, TypeError.
    Threads: any; the sensors are locked together.
    """
    cdef Charge c_charges[LARGEST_CHARGES]
    cdef int64_t now_ms = checked_time(time_ms, borrow_clock(clock))
    cdef int64_t throttle_ms = 0
    cdef int32_t count, i
    cdef int result
    cdef Charge *c_charge
    charges = list(charges)     # holds the sensors while the GIL is away
    if len(charges) > LARGEST_CHARGES:
        raise ValueError(f"{LARGEST_CHARGES} charges at most, got {len(charges)}")
    count = len(charges)
    for i in range(count):
        given = tuple(charges[i])
        if not 2 <= len(given) <= 4:
            raise ValueError(f"a charge is (sensor, value[, mode[, max_throttle_ms]]), got {len(given)} items")
        c_charge = &c_charges[i]
        sensor = given[0]
        if sensor is not None and not isinstance(sensor, Sensor):
            raise TypeError(f"sensor must be a Sensor or None, not {type(sensor).__name__}")
        mode = given[2] if len(given) > 2 else "permissive"
        if mode not in MODES:
            raise ValueError(f"mode must be permissive, strict or unchecked, got {mode!r}")
        c_charge.sensor = NULL
        if sensor is not None:
            c_charge.sensor = (<Sensor>sensor).sensor
        c_charge.value = given[1]
        c_charge.mode = MODES.index(mode)
        c_charge.cap_ms = NO_CAP
        if len(given) > 3 and given[3] is not None:
            c_charge.cap_ms = integer(given[3], "max_throttle_ms", 0, INT64_MAX)
        charges[i] = given
    with nogil:
        result = sensors_charge(c_charges, count, now_ms, &throttle_ms)
    delays, violated = [], []
    for i in range(count):
        c_charge = &c_charges[i]
        has_none = c_charge.is_violated and not metric_has_throttle(c_charge.violation.metric)
        delays.append(None if has_none else c_charge.throttle_ms)
        violated.append(bool(c_charge.is_violated))
    return ChargeDecision(result == CHARGE_ACCEPTED, throttle_ms, tuple(delays), tuple(violated))
