"""Bins of the histograms behind percentiles. Source: ``Histogram.java``."""
from libc.math cimport sqrt
from libc.stdint cimport int32_t

cdef struct HistogramScheme:    # float counts in bins of one width, or of widths that grow linearly from 0
    bint is_linear
    int32_t bins
    double smallest
    double largest
    double scale                # width of a bin; linear: of the first one

cdef inline int32_t bin_of(const HistogramScheme *scheme, double value) noexcept nogil:
    """Return the bin of a value, limited to the range first; NaN is in the first bin."""
    cdef double place
    if value > scheme.largest:
        value = scheme.largest
    elif value < scheme.smallest:
        value = scheme.smallest
    if scheme.is_linear:
        place = -0.5 + 0.5 * sqrt(1.0 + 8.0 * value / scheme.scale)
    elif value <= scheme.smallest:
        return 0
    elif value >= scheme.largest:
        return scheme.bins - 1
    else:
        place = (value - scheme.smallest) / scheme.scale
    if place != place:
        return 0
    return scheme.bins - 1 if place >= scheme.bins - 1 else <int32_t>place

cdef inline double value_of_bin(const HistogramScheme *scheme, int32_t number) noexcept nogil:
    if scheme.is_linear:
        return scheme.scale * (<double>number * (<double>number + 1.0)) / 2.0
    return scheme.smallest + <double>number * scheme.scale
