import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams with exactly_once_v2: counts the words of "lines" into "counted", with each step of each count.
 *
 * <p>WordCount BOOTSTRAP STATE_FOLDER, until it is killed, with a repartition topic, a state store and its changelog topic.
 */
public final class WordCount {
    private WordCount() {}

    private static Properties settings(String bootstrap, String folder) {
        Properties settings = new Properties();
        settings.putAll(Map.of(
            "application.id", "word-count",
            "bootstrap.servers", bootstrap,
            "state.dir", folder,
            "processing.guarantee", "exactly_once_v2",
            "num.stream.threads", 2,
            "commit.interval.ms", 100,
            "statestore.cache.max.bytes", 0));
        settings.putAll(Map.of(
            "consumer.auto.offset.reset", "earliest",
            "consumer.max.poll.records", 100,
            "consumer.session.timeout.ms", 2000, // time for which the group waits for a killed member
            "consumer.heartbeat.interval.ms", 500));
        return settings;
    }

    public static void main(String[] arguments) throws InterruptedException {
        var builder = new StreamsBuilder();
        builder.stream("lines", Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(String::valueOf)
            .to("counted", Produced.with(Serdes.String(), Serdes.String()));
        var streams = new KafkaStreams(builder.build(), settings(arguments[0], arguments[1]));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        new CountDownLatch(1).await();
    }
}
