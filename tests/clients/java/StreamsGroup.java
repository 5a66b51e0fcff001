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
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;

/**
 * A Kafka Streams application with group.protocol=streams.
 *
 * <p>StreamsGroup BOOTSTRAP STATE_FOLDER GUARANTEE ENDPOINT, until it is killed. It counts the words of "lines" into
 * "counted", and joins the records of "left" and "right" by key within an hour into "joined". Each line of the output is
 * a change of the state.
 */
public final class StreamsGroup {
    private StreamsGroup() {}

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.putAll(Map.of(
            "application.id", "streams-application",
            "bootstrap.servers", arguments[0],
            "state.dir", arguments[1],
            "processing.guarantee", arguments[2],
            "group.protocol", "streams",
            "num.stream.threads", 2,
            "commit.interval.ms", 100,
            "statestore.cache.max.bytes", 0));
        settings.putAll(Map.of(
            "application.server", arguments[3],
            "consumer.auto.offset.reset", "earliest",
            "consumer.max.poll.records", 100));
        return settings;
    }

    private static void count(StreamsBuilder builder) {
        builder.stream("lines", Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(String::valueOf)
            .to("counted", Produced.with(Serdes.String(), Serdes.String()));
    }

    private static void join(StreamsBuilder builder) {
        var texts = Consumed.with(Serdes.String(), Serdes.String());
        builder.stream("left", texts)
            .join(
                builder.stream("right", texts),
                (left, right) -> left + "+" + right,
                JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofHours(1)),
                StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String()))
            .to("joined", Produced.with(Serdes.String(), Serdes.String()));
    }

    public static void main(String[] arguments) throws InterruptedException {
        var builder = new StreamsBuilder();
        count(builder);
        join(builder);
        var streams = new KafkaStreams(builder.build(), settings(arguments));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        new CountDownLatch(1).await();
    }
}
