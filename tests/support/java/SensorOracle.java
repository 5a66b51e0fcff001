import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MeasurableStat;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.Sensor.RecordingLevel;
import org.apache.kafka.common.metrics.stats.Avg;
import org.apache.kafka.common.metrics.stats.CumulativeCount;
import org.apache.kafka.common.metrics.stats.CumulativeSum;
import org.apache.kafka.common.metrics.stats.Max;
import org.apache.kafka.common.metrics.stats.Meter;
import org.apache.kafka.common.metrics.stats.Min;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.SampledStat;
import org.apache.kafka.common.metrics.stats.SimpleRate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.common.metrics.stats.Value;
import org.apache.kafka.common.metrics.stats.WindowedCount;
import org.apache.kafka.common.metrics.stats.WindowedSum;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.quota.QuotaUtils;

/**
 * Interpreter of scripts on standard input with Kafka's own sensors; tests/support/sensor_script.py explains the language.
 * A line is printed for each operation with a result; doubles are the sixteen hexadecimal digits of their bits.
 */
final class SensorOracle {

    private static final class ScriptClock implements Time {
        private long ms;

        @Override
        public long milliseconds() {
            return ms;
        }

        @Override
        public long nanoseconds() {
            return TimeUnit.MILLISECONDS.toNanos(ms);
        }

        @Override
        public void sleep(long sleepMs) {
            throw new UnsupportedOperationException("a script does not sleep");
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException("a script does not wait");
        }
    }

    /** Words of a line: positional words, and words of the form NAME=VALUE. */
    private static final class Words {
        private final List<String> row = new ArrayList<>();
        private final Map<String, String> named = new HashMap<>();

        Words(String line) {
            for (String word : line.split(" ")) {
                int equals = word.indexOf('=');
                if (equals < 0) row.add(word);
                else named.put(word.substring(0, equals), word.substring(equals + 1));
            }
        }

        String at(int index) {
            return row.get(index);
        }

        double number(int index) {
            return Double.parseDouble(row.get(index));
        }

        MetricConfig over(MetricConfig base) {
            MetricConfig made = new MetricConfig().samples(base.samples()).eventWindow(base.eventWindow())
                .timeWindow(base.timeWindowMs(), TimeUnit.MILLISECONDS).recordLevel(base.recordLevel()).quota(base.quota());
            if (named.containsKey("samples")) made.samples(Integer.parseInt(named.get("samples")));
            if (named.containsKey("event_window")) made.eventWindow(Long.parseLong(named.get("event_window")));
            if (named.containsKey("window_ms"))
                made.timeWindow(Long.parseLong(named.get("window_ms")), TimeUnit.MILLISECONDS);
            if (named.containsKey("record_level")) made.recordLevel(RecordingLevel.forName(named.get("record_level")));
            if (named.containsKey("at_most")) made.quota(limit(named.get("at_most"), true));
            if (named.containsKey("at_least")) made.quota(limit(named.get("at_least"), false));
            return made;
        }

        private static Quota limit(String text, boolean upper) {
            return text.equals("none") ? null : new Quota(Double.parseDouble(text), upper);
        }
    }

    private final ScriptClock clock = new ScriptClock();
    private final Metrics registry = new Metrics(new MetricConfig(), List.of(), clock);
    private final Map<String, Sensor> sensors = new HashMap<>();
    private final Map<String, KafkaMetric> metrics = new HashMap<>();

    public static void main(String[] args) throws IOException {
        BufferedReader script = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintWriter out = new PrintWriter(System.out, false, StandardCharsets.UTF_8);
        SensorOracle oracle = new SensorOracle();
        for (String line = script.readLine(); line != null; line = script.readLine()) {
            if (line.equals("fresh")) {
                oracle.registry.close();
                oracle = new SensorOracle();
            } else if (line.startsWith("at ")) {
                oracle.clock.ms = Long.parseLong(line.substring(3));
            } else {
                out.println(oracle.result(new Words(line)));
            }
        }
        out.flush();
    }

    private String result(Words words) {
        try {
            return perform(words.at(0), words);
        } catch (QuotaViolationException violation) {
            KafkaMetric metric = violation.metric();
            return "violation " + metric.metricName().name() + " " + bits(violation.value()) + " " + bits(violation.bound())
                + " " + delay(metric, violation, null);
        } catch (IllegalArgumentException refused) {
            return "refused";
        }
    }

    private String perform(String operation, Words words) {
        long now = clock.ms;
        String name = words.at(1);
        Sensor sensor = sensors.get(name);
        KafkaMetric metric = metrics.get(name);
        switch (operation) {
            case "sensor" -> {
                String parents = words.named.getOrDefault("parents", "");
                Sensor[] above = parents.isEmpty() ? new Sensor[0]
                    : List.of(parents.split(",")).stream().map(sensors::get).toArray(Sensor[]::new);
                long expiresS = Long.parseLong(words.named.getOrDefault("expires_s", "" + Long.MAX_VALUE));
                RecordingLevel level = RecordingLevel.forName(words.named.getOrDefault("level", "INFO"));
                sensors.put(name, registry.sensor(name, words.over(new MetricConfig()), expiresS, level, above));
                return "ok";
            }
            case "stat" -> {
                return "" + add(sensor, words.at(2), words.at(3), words);
            }
            case "record" -> sensor.record(words.number(2), now, true);
            case "record_unchecked" -> sensor.record(words.number(2), now, false);
            case "record_strict" -> {
                synchronized (sensor) { // as the strict quota of controller mutations does
                    sensor.checkQuotas(now);
                    sensor.record(words.number(2), now, false);
                }
            }
            case "check" -> sensor.checkQuotas(now);
            case "remove" -> registry.removeSensor(name);
            case "is_known" -> {
                return "" + (registry.getSensor(name) != null);
            }
            case "is_expired" -> {
                return "" + sensor.hasExpired();
            }
            case "configure" -> metric.config(words.over(metric.config()));
            case "value" -> {
                return bits(metric.measurable().measure(metric.config(), now));
            }
            case "window_ms" -> {
                return "" + ((Rate) metric.measurable()).windowSize(metric.config(), now);
            }
            case "throttle_ms" -> {
                double value = metric.measurable().measure(metric.config(), now);
                Quota quota = metric.config().quota();
                Long most = words.row.size() > 2 ? Long.valueOf(words.at(2)) : null;
                return "" + delay(metric, new QuotaViolationException(metric, value, quota.bound()), most);
            }
            case "samples" -> {
                return samples(metric);
            }
            default -> throw new IllegalStateException("no such operation: " + operation);
        }
        return "ok";
    }

    private boolean add(Sensor sensor, String name, String kind, Words words) {
        TimeUnit unit = TimeUnit.valueOf(words.named.getOrDefault("unit", "seconds").toUpperCase(Locale.ROOT));
        MetricConfig config = words.over(new MetricConfig());
        boolean isAdded;
        List<String> names = List.of(name);
        if (kind.endsWith("meter")) {
            names = List.of(name + ".rate", name + ".total");
            MetricName rate = named(names.get(0));
            MetricName total = named(names.get(1));
            Meter meter = kind.equals("meter") ? new Meter(unit, rate, total)
                : new Meter(unit, new WindowedCount(), rate, total);
            isAdded = sensor.add(meter, config);
        } else {
            isAdded = sensor.add(named(name), stat(kind, unit), config);
        }
        for (String each : names) {
            KafkaMetric made = registry.metric(named(each));
            if (made != null) metrics.put(each, made);
        }
        return isAdded;
    }

    private MetricName named(String name) {
        return registry.metricName(name, "oracle");
    }

    private static MeasurableStat stat(String kind, TimeUnit unit) {
        return switch (kind) {
            case "avg" -> new Avg();
            case "count_rate" -> new Rate(unit, new WindowedCount());
            case "cumulative_count" -> new CumulativeCount();
            case "cumulative_sum" -> new CumulativeSum();
            case "max" -> new Max();
            case "min" -> new Min();
            case "rate" -> new Rate(unit);
            case "simple_rate" -> new SimpleRate();
            case "token_bucket" -> new TokenBucket(unit);
            case "value" -> new Value();
            case "windowed_count" -> new WindowedCount();
            case "windowed_sum" -> new WindowedSum();
            default -> throw new IllegalStateException("no such stat: " + kind);
        };
    }

    /** Returns the throttle time of Kafka's quota managers for each kind of metric, or "-" for other kinds. */
    private String delay(KafkaMetric metric, QuotaViolationException violation, Long most) {
        if (metric.measurable() instanceof TokenBucket)
            return "" + Math.round(-violation.value() / violation.bound() * 1000);
        if (!(metric.measurable() instanceof Rate)) return "-";
        return "" + (most == null ? QuotaUtils.throttleTime(violation, clock.ms)
            : QuotaUtils.boundedThrottleTime(violation, most, clock.ms));
    }

    /** Returns the samples in the order of the list: start, last event, events, value. */
    private static String samples(KafkaMetric metric) {
        try {
            Object stat = metric.measurable();
            if (stat instanceof Rate) stat = read(Rate.class, "stat", stat);
            StringJoiner all = new StringJoiner(" ");
            for (Object sample : (List<?>) read(SampledStat.class, "samples", stat)) {
                Class<?> kind = Class.forName(SampledStat.class.getName() + "$Sample");
                all.add(read(kind, "startTimeMs", sample) + "," + read(kind, "lastEventMs", sample) + ","
                    + read(kind, "eventCount", sample) + "," + bits((Double) read(kind, "value", sample)));
            }
            return all.length() == 0 ? "-" : all.toString();
        } catch (ReflectiveOperationException changed) {
            throw new IllegalStateException(changed);
        }
    }

    private static Object read(Class<?> declaring, String field, Object object) throws ReflectiveOperationException {
        Field found = declaring.getDeclaredField(field);
        found.setAccessible(true);
        return found.get(object);
    }

    private static String bits(double value) {
        return String.format("%016x", Double.doubleToLongBits(value));
    }
}
