import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.Map;
import java.util.Optional;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Flink with exactly-once semantics of KafkaSink: counts the words of "lines" into "counted", with each step of each count.
 *
 * <p>FlinkWordCount BOOTSTRAP CHECKPOINT_FOLDER INCREMENTING|POOLING, until it is killed. A start continues from the latest checkpoint.
 */
public final class FlinkWordCount {
    private FlinkWordCount() {}

    private static final class Count extends KeyedProcessFunction<String, String, Tuple2<String, String>> {
        private static final long serialVersionUID = 1L;
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(String word, Context context, Collector<Tuple2<String, String>> out) throws IOException {
            Long before = count.value();
            long now = before == null ? 1 : before + 1;
            count.update(now);
            out.collect(Tuple2.of(word, Long.toString(now)));
        }
    }

    private static final class Part implements SerializationSchema<Tuple2<String, String>> {
        private static final long serialVersionUID = 1L;
        private final int field;

        Part(int field) {
            this.field = field;
        }

        @Override
        public byte[] serialize(Tuple2<String, String> pair) {
            return pair.<String>getField(field).getBytes(StandardCharsets.UTF_8);
        }
    }

    private static long modified(Path file) {
        try {
            return Files.getLastModifiedTime(file).toMillis();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static Optional<Path> latestCheckpoint(Path folder) throws IOException {
        if (!Files.isDirectory(folder)) {
            return Optional.empty();
        }
        try (var files = Files.walk(folder, 3)) {
            return files.filter(file -> file.endsWith("_metadata"))
                .max(Comparator.comparingLong(FlinkWordCount::modified))
                .map(Path::getParent);
        }
    }

    private static Configuration settings(Path folder) throws IOException {
        Map<String, String> settings = Map.of(
            "execution.checkpointing.interval", "300 ms",
            "execution.checkpointing.storage", "filesystem",
            "execution.checkpointing.dir", folder.toUri().toString(),
            "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION",
            "restart-strategy.type", "fixed-delay",
            "restart-strategy.fixed-delay.attempts", "1000",
            "restart-strategy.fixed-delay.delay", "500 ms",
            "parallelism.default", "2");
        Configuration configuration = Configuration.fromMap(settings);
        latestCheckpoint(folder).ifPresent(
            checkpoint -> configuration.setString("execution.state-recovery.path", checkpoint.toUri().toString()));
        return configuration;
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        Path folder = Path.of(arguments[1]);
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(settings(folder));
        var source = KafkaSource.<String>builder()
            .setBootstrapServers(bootstrap)
            .setTopics("lines")
            .setGroupId("flink")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setProperty("isolation.level", "read_committed")
            .setProperty("max.poll.records", "100")
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        var schema = KafkaRecordSerializationSchema.<Tuple2<String, String>>builder()
            .setTopic("counted")
            .setKeySerializationSchema(new Part(0))
            .setValueSerializationSchema(new Part(1))
            .build();
        var sink = KafkaSink.<Tuple2<String, String>>builder()
            .setBootstrapServers(bootstrap)
            .setRecordSerializer(schema)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink")
            .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(arguments[2]))
            .setProperty("transaction.timeout.ms", Long.toString(Duration.ofMinutes(10).toMillis()))
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "lines").uid("lines")
            .flatMap((String line, Collector<String> out) -> {
                Thread.sleep(1); // so that a kill interrupts work
                for (String word : line.split(" ")) {
                    out.collect(word);
                }
            }).returns(Types.STRING).uid("words")
            .keyBy(word -> word, Types.STRING)
            .process(new Count()).returns(Types.TUPLE(Types.STRING, Types.STRING)).uid("counts")
            .sinkTo(sink).uid("counted");
        environment.execute("word count");
    }
}
