/**
 * Requests of a run, drawn before its clock starts, the same as those of kbroker.spark.purgatory.workload for the seed.
 *
 * <p>SplitMix64 returns three numbers in [0, 1) per request: one for the interval since the previous request (exponential), two for
 * the latency (log-normal by Box and Muller's method, from its median and 75th percentile), all in whole milliseconds.
 */
final class Workload {
    private static final double DEVIATIONS_TO_QUARTILE = 0.67449;
    private static final long KEYS_SEED = 0x6B657973L;

    final int[] dueMs;
    final int[] latencyMs;
    final int toComplete;

    Workload(Options options, int count, double rate) {
        dueMs = new int[count];
        latencyMs = new int[count];
        Draws draws = new Draws(options.seed);
        double logMedian = Math.log(options.p50);
        double deviation = (Math.log(options.p75) - logMedian) / DEVIATIONS_TO_QUARTILE;
        double due = 0;
        int below = 0;
        for (int i = 0; i < count; i++) {
            double interval = draws.unit();
            double radius = Math.sqrt(-2 * Math.log(1 - draws.unit()));
            double normal = radius * Math.cos(2 * Math.PI * draws.unit());
            if (rate > 0) due += -Math.log(1 - interval) * 1000 / rate;
            dueMs[i] = (int) due;
            latencyMs[i] = (int) Math.exp(logMedian + normal * deviation);
            if (latencyMs[i] < options.timeoutMs) below++;
        }
        toComplete = below;
    }

    /** Draws of key numbers, a separate sequence. */
    static Draws keyDraws(Options options) {
        return new Draws(options.seed ^ KEYS_SEED);
    }

    /** SplitMix64. */
    static final class Draws {
        private long state;

        private Draws(long seed) {
            state = seed;
        }

        private long next() {
            state += 0x9E3779B97F4A7C15L;
            long mixed = (state ^ state >>> 30) * 0xBF58476D1CE4E5B9L;
            mixed = (mixed ^ mixed >>> 27) * 0x94D049BB133111EBL;
            return mixed ^ mixed >>> 31;
        }

        double unit() {
            return (next() >>> 11) * 0x1.0p-53;
        }

        long below(long bound) {
            return (next() >>> 11) % bound;
        }
    }
}
