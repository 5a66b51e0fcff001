import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.CompoundStat.NamedMeasurable;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.stats.Percentile;
import org.apache.kafka.common.metrics.stats.Percentiles;
import org.apache.kafka.common.metrics.stats.Percentiles.BucketSizing;

/**
 * Driver of Kafka's own Percentiles by lines of the standard input.
 *
 * <p>{@code new BUCKETING BYTES SMALLEST LARGEST SAMPLES WINDOW_MS P...} makes new ones; {@code record TIME_MS VALUE} prints
 * nothing; {@code read TIME_MS} prints every percentile as the 16 hexadecimal digits of its bits.
 */
final class PercentilesTrace {

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        Percentiles stat = null;
        MetricConfig config = null;
        List<NamedMeasurable> metrics = List.of();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("new")) {
                Percentile[] wanted = new Percentile[words.length - 7];
                for (int i = 0; i < wanted.length; i++)
                    wanted[i] = new Percentile(new MetricName("p" + i, "g", "", java.util.Map.of()),
                        Double.parseDouble(words[i + 7]));
                int bytes = Integer.parseInt(words[2]);
                double smallest = Double.parseDouble(words[3]);
                double largest = Double.parseDouble(words[4]);
                stat = words[1].equals("linear")
                    ? new Percentiles(bytes, largest, BucketSizing.LINEAR, wanted)
                    : new Percentiles(bytes, smallest, largest, BucketSizing.CONSTANT, wanted);
                config = new MetricConfig().samples(Integer.parseInt(words[5]))
                    .timeWindow(Long.parseLong(words[6]), java.util.concurrent.TimeUnit.MILLISECONDS);
                metrics = new ArrayList<>(stat.stats());
            } else if (words[0].equals("record")) {
                stat.record(config, Double.parseDouble(words[2]), Long.parseLong(words[1]));
            } else {
                final MetricConfig now = config;
                out.append(metrics.stream()
                    .map(m -> String.format("%016x", Double.doubleToLongBits(
                        m.stat().measure(now, Long.parseLong(words[1])))))
                    .collect(Collectors.joining(" "))).append('\n');
            }
        }
        System.out.print(out);
    }
}
