import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The transactions of test_transactions.py on Kafka's own client, with the results as one line of JSON.
 *
 * <p>Transactions BOOTSTRAP TOPIC
 */
public final class Transactions {
    private final String bootstrap;
    private final String topic;
    private final TopicPartition in;

    private Transactions(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.in = new TopicPartition(topic + "-in", 0);
    }

    private KafkaProducer<String, String> producer() {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", topic);
        var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    private void write(KafkaProducer<String, String> producer, String note) {
        producer.beginTransaction();
        for (int n = 0; n < 5; n++) {
            producer.send(new ProducerRecord<>(topic, 0, null, note + " " + n));
        }
        producer.flush();
    }

    private void give(KafkaProducer<String, String> producer, long offset, ConsumerGroupMetadata group) {
        producer.sendOffsetsToTransaction(Map.of(in, new OffsetAndMetadata(offset)), group);
    }

    private KafkaConsumer<String, String> consumer() {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "group.id", topic, "enable.auto.commit", false, "isolation.level", "read_committed");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private List<String> read(KafkaConsumer<String, String> consumer) {
        TopicPartition out = new TopicPartition(topic, 0);
        consumer.assign(List.of(out));
        consumer.seekToBeginning(List.of(out));
        long end = consumer.endOffsets(List.of(out)).get(out);
        List<String> found = new ArrayList<>();
        long deadline = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        while (consumer.position(out) < end && System.nanoTime() < deadline) {
            consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(record.value()));
        }
        return found;
    }

    private Map<String, Object> run() {
        try (var consumer = consumer(); var first = producer()) {
            write(first, "commit");
            give(first, 7, consumer.groupMetadata());
            first.commitTransaction();
            write(first, "abort");
            give(first, 9, consumer.groupMetadata());
            first.abortTransaction();
            long offset = consumer.committed(Set.of(in)).get(in).offset();
            write(first, "open");
            String fenced = "";
            try (var second = producer()) {
                try {
                    first.commitTransaction();
                } catch (KafkaException error) {
                    fenced = error.getClass().getSimpleName();
                }
                write(second, "second");
                second.commitTransaction();
            }
            return Map.of("read", read(consumer), "offset", offset, "fenced", fenced);
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println(new ObjectMapper().writeValueAsString(new Transactions(arguments[0], arguments[1]).run()));
    }
}
