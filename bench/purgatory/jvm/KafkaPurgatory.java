import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationKey;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;
import org.apache.kafka.server.util.timer.SystemTimer;

/**
 * Apache Kafka's purgatory under the workload of the study; prints one JSON object with the figures of one_run.py.
 *
 * <p>A generator adds requests in an open loop: each request at its due time or as soon as possible after it. A request that
 * completes before its timeout is first added to a completion queue, from which one thread takes and completes due requests.
 * Other requests expire by the purgatory's reaper. {@code --bare} measures generator and completion queue without the
 * purgatory. {@code --show N} prints the first N draws. Exit status: 2 wrong usage, 3 out of memory
 * (by -XX:+ExitOnOutOfMemoryError).
 */
final class KafkaPurgatory {
    private static final String NAME = "study";
    private static final int LOOK_EVERY_MS = 10;

    record NumberedKey(long number) implements DelayedOperationKey {
        @Override
        public String keyLabel() {
            return "key-" + number;
        }
    }

    private final Options options;
    private final Machine machine;
    private final Workload work;
    private final int count;
    private final double rate;
    private final CountDownLatch unfinished;
    private final DelayQueue<Request> completions = new DelayQueue<>();
    private final DelayedOperationPurgatory<Request> purgatory; // null when bare
    private volatile boolean isOver;
    private int immediate; // of the generator thread
    private final int[] expiryLateUs; // of the purgatory's executor, up to `expired`
    private int expired;
    private int expiredThoughDue;
    private final int[] completionLateUs; // of the completion thread, up to `completed`
    private int completed;
    private int peakPending; // of the observer thread, read after its end
    private double enqueueS;
    private double elapsedS;
    private final Map<String, Double> cpuByThread = new HashMap<>();

    private KafkaPurgatory(Options options, Machine machine, int count, double rate) {
        this.options = options;
        this.machine = machine;
        this.count = count;
        this.rate = rate;
        work = new Workload(options, count, rate);
        unfinished = new CountDownLatch(options.bare ? work.toComplete : count);
        expiryLateUs = new int[count];
        completionLateUs = new int[count];
        purgatory = options.bare ? null
            : new DelayedOperationPurgatory<>(NAME, new SystemTimer(NAME), 0, options.purgeInterval, true, true);
    }

    private static long nowMs() {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime());
    }

    private final class Request extends DelayedOperation implements Delayed {
        private final long madeNs = System.nanoTime();
        private final long madeMs = TimeUnit.NANOSECONDS.toMillis(madeNs);
        private final long completesAtMs;
        private final byte[] payload = new byte[options.size]; // memory of a request

        Request(int latencyMs) {
            super(options.timeoutMs);
            completesAtMs = madeMs + latencyMs;
        }

        @Override
        public boolean tryComplete() {
            return nowMs() >= completesAtMs && forceComplete();
        }

        @Override
        public void onComplete() {
            unfinished.countDown();
        }

        @Override
        public void onExpiration() {
            long waitedUs = TimeUnit.NANOSECONDS.toMicros(System.nanoTime() - madeNs);
            expiryLateUs[expired++] = (int) (waitedUs - TimeUnit.MILLISECONDS.toMicros(options.timeoutMs));
            if (completesAtMs - madeMs < options.timeoutMs) expiredThoughDue++;
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(completesAtMs - nowMs(), TimeUnit.MILLISECONDS);
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.compare(completesAtMs, ((Request) other).completesAtMs);
        }
    }

    private void generate(long begunMs) throws InterruptedException {
        Workload.Draws draws = Workload.keyDraws(options);
        List<NumberedKey> keys = keys(draws);
        for (int i = 0; i < count; i++) {
            if (rate > 0) {
                long early = begunMs + work.dueMs[i] - nowMs();
                if (early > 0) Thread.sleep(early);
            }
            Request request = new Request(work.latencyMs[i]);
            if (work.latencyMs[i] < options.timeoutMs) completions.add(request);
            if (purgatory == null) continue;
            if (options.freshKeys) keys = keys(draws);
            if (purgatory.tryCompleteElseWatch(request, keys)) immediate++;
        }
    }

    private List<NumberedKey> keys(Workload.Draws draws) {
        List<NumberedKey> drawn = new ArrayList<>(options.keys);
        for (int i = 0; i < options.keys; i++) drawn.add(new NumberedKey(draws.below(options.keySpace)));
        return drawn;
    }

    private void complete() throws InterruptedException {
        while (!isOver) {
            Request due = completions.poll(100, TimeUnit.MILLISECONDS);
            if (due != null && due.forceComplete())
                completionLateUs[completed++] = (int) (System.nanoTime() / 1000 - due.completesAtMs * 1000);
        }
    }

    private void observe() throws InterruptedException {
        while (!isOver) {
            if (purgatory != null) peakPending = Math.max(peakPending, purgatory.numDelayed());
            machine.lookAtHeap();
            Thread.sleep(LOOK_EVERY_MS);
        }
    }

    private interface Work {
        void run() throws InterruptedException;
    }

    private static Thread started(String name, Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (InterruptedException unexpected) {
                throw new IllegalStateException(unexpected);
            }
        }, name);
        thread.start();
        return thread;
    }

    /** Runs to the end; the CPU clocks are read before any of the threads ends. */
    private Machine.Usage go() throws Exception {
        Machine.Usage before = Machine.usage();
        Thread completer = started("completion", this::complete);
        Thread observer = started("observer", this::observe);
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        long begunNs = System.nanoTime();
        Thread generator = started("generator", () -> {
            generate(TimeUnit.NANOSECONDS.toMillis(begunNs));
            enqueueS = (System.nanoTime() - begunNs) / 1e9;
            cpuByThread.put("generator", threads.getCurrentThreadCpuTime() / 1e9);
        });
        generator.join();
        unfinished.await();
        elapsedS = (System.nanoTime() - begunNs) / 1e9;
        Machine.Usage used = Machine.usage().since(before);
        for (ThreadInfo thread : threads.getThreadInfo(threads.getAllThreadIds()))
            if (thread != null)
                cpuByThread.merge(thread.getThreadName(), threads.getThreadCpuTime(thread.getThreadId()) / 1e9, Double::sum);
        isOver = true;
        completer.join();
        observer.join();
        if (purgatory != null) purgatory.shutdown();
        if (purgatory != null && immediate + completed + expired != count)
            throw new IllegalStateException("of " + count + " requests " + immediate + " + " + completed + " + " + expired
                + " have ended");
        return used;
    }

    private double cpuOf(String threadNames) {
        return cpuByThread.entrySet().stream().filter(entry -> entry.getKey().startsWith(threadNames))
            .mapToDouble(Map.Entry::getValue).sum();
    }

    private String figures(Machine.Usage used) {
        Json json = new Json();
        json.text("kafka", AppInfoParser.getVersion());
        json.text("java", System.getProperty("java.version"));
        json.put("n", count).put("warmup", options.warmup).put("p50", options.p50).put("p75", options.p75);
        json.put("timeout_ms", options.timeoutMs).put("size", options.size).put("keys", options.keys);
        json.put("fresh_keys", options.freshKeys).put("bare", options.bare).put("seed", options.seed);
        json.put("purge_interval", options.purgeInterval).put("drawn_to_complete", work.toComplete);
        json.put("rate_target", rate);
        json.put("rate_drawn", rate > 0 ? count * 1000.0 / Math.max(1, work.dueMs[count - 1]) : 0.0);
        json.put("rate_enqueue", count / enqueueS).put("rate_finish", count / elapsedS);
        json.put("enqueue_s", enqueueS).put("elapsed_s", elapsedS);
        json.put("cpu_s", used.processS()).put("cpus", used.processS() / elapsedS);
        json.put("cpu_us_per_request", used.processS() * 1e6 / count);
        json.put("other_cpus", Math.max(0, used.machineS() - used.processS()) / elapsedS);
        json.put("stolen_cpus", used.stolenS() / elapsedS);
        Json threads = new Json().put("generator", cpuOf("generator")).put("completion", cpuOf("completion"));
        json.put("cpu_s_by_thread", threads.put("reaper", cpuOf("ExpirationReaper")).put("executor", cpuOf("executor-")));
        json.put("gc_count", used.collections()).put("gc_pause_ms", used.pausesMs());
        json.put("gc_max_ms", machine.longestPauseMs());
        json.put("heap_limit_mb", Runtime.getRuntime().maxMemory() >> 20);
        json.put("heap_peak_mb", machine.heapPeakBytes() / 1048576.0);
        json.put("heap_peak_after_gc_mb", machine.livePeakBytes() / 1048576.0);
        json.put("peak_pending", peakPending).put("immediate", immediate).put("completed", completed);
        json.put("expired", expired).put("expired_though_due", expiredThoughDue);
        json.put("expiry_late_ms", lateness(expiryLateUs, expired));
        json.put("completion_late_ms", lateness(completionLateUs, completed));
        return json.toString();
    }

    /** Returns nearest-rank percentiles in milliseconds, null without values. */
    private static Object lateness(int[] us, int count) {
        if (count == 0) return null;
        int[] sorted = Arrays.copyOf(us, count);
        Arrays.sort(sorted);
        Json json = new Json();
        for (String name : new String[] {"50", "90", "99", "99.9"}) {
            int rank = (int) Math.ceil(Double.parseDouble(name) / 100 * count);
            json.put("p" + name, sorted[Math.max(rank, 1) - 1] / 1000.0);
        }
        return json.put("min", sorted[0] / 1000.0).put("max", sorted[count - 1] / 1000.0);
    }

    private static final class Json {
        private final StringJoiner members = new StringJoiner(", ", "{", "}");

        Json put(String name, Object value) {
            members.add("\"" + name + "\": "
                + (value instanceof Double ? String.format(Locale.ROOT, "%.3f", (Double) value) : String.valueOf(value)));
            return this;
        }

        void text(String name, String value) {
            put(name, "\"" + value + "\"");
        }

        @Override
        public String toString() {
            return members.toString();
        }
    }

    public static void main(String[] words) throws Exception {
        Options options;
        try {
            options = Options.of(words);
        } catch (IllegalArgumentException wrong) {
            System.err.println("KafkaPurgatory: " + wrong.getMessage());
            System.exit(2);
            return;
        }
        if (options.show > 0) {
            Workload work = new Workload(options, options.show, options.rate);
            Json shown = new Json().put("due_ms", Arrays.toString(work.dueMs));
            System.out.println(shown.put("latency_ms", Arrays.toString(work.latencyMs)));
            return;
        }
        Machine machine = new Machine();
        if (options.warmup > 0) {
            new KafkaPurgatory(options, machine, options.warmup, 0).go();
            System.gc();
            Thread.sleep(500);
        }
        machine.forgetPeaks();
        KafkaPurgatory run = new KafkaPurgatory(options, machine, options.n, options.rate);
        Machine.Usage used = run.go();
        Thread.sleep(50); // wait for the last notifications of the collector
        System.out.println(run.figures(used));
    }
}
