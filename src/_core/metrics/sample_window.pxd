"""The ring of samples behind sums, averages, extremes, rates and percentiles; no clock and no lock inside.

A SampleWindow is embedded in a Stat and guarded by the lock of its sensor. Its memory is one block; a block that
became too small is kept in ``block.older`` until the window is freed, so that a view of it never dangles.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.metrics.metric_config cimport StatConfig

cdef enum SampleKind:
    SAMPLE_SUM = 0
    SAMPLE_COUNT = 1
    SAMPLE_AVG = 2
    SAMPLE_MAX = 3
    SAMPLE_MIN = 4
    SAMPLE_HISTOGRAM = 5

cdef struct Sample:
    double value
    int64_t event_count
    int64_t start_ms
    int64_t last_event_ms

cdef struct HistogramScheme:    # float counts in bins of one width, or of widths that grow linearly from 0
    bint is_linear
    int32_t bins
    double smallest
    double largest
    double scale                # width of a bin; linear: of the first one

cdef struct SampleBlock:        # header of the memory: samples behind it, histogram counts behind those
    SampleBlock *older
    int32_t capacity

cdef struct SampleWindow:
    SampleBlock *block          # owned, with all older ones
    Sample *ring
    float *counts               # histogram: capacity x bins, else NULL
    double initial
    int64_t own_window_ms       # in place of the config's, or 0
    int32_t kind
    int32_t length              # samples that exist, in the order of their making
    int32_t current
    HistogramScheme scheme

cdef bint window_init(SampleWindow *window, int32_t kind, const StatConfig *config, int64_t own_window_ms,
                      const HistogramScheme *scheme) noexcept nogil     # false: memory is out
cdef void window_destroy(SampleWindow *window) noexcept nogil
# Room for the ring of this config (samples + 1 slots). False: memory is out, nothing changed.
cdef bint window_reserve(SampleWindow *window, const StatConfig *config) noexcept nogil
cdef void window_record(SampleWindow *window, const StatConfig *config, double value, int64_t now_ms) noexcept nogil
cdef double window_measure(SampleWindow *window, const StatConfig *config, int64_t now_ms) noexcept nogil
cdef double window_quantile(SampleWindow *window, const StatConfig *config, double quantile,
                            int64_t now_ms) noexcept nogil
# Value of the stat divided by the elapsed window in the unit. is_simple: without the padding to samples - 1 windows.
cdef double window_rate(SampleWindow *window, const StatConfig *config, int32_t unit, bint is_simple,
                        int64_t now_ms) noexcept nogil
cdef int64_t window_size_ms(SampleWindow *window, const StatConfig *config, bint is_simple,
                            int64_t now_ms) noexcept nogil
