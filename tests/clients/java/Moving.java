import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer and a member of a group while leaders and coordinators move, on Kafka's own client: see moving.py.
 *
 * <p>Moving BOOTSTRAP TOPIC COUNT
 */
public final class Moving {
    private static final Set<String> READ = new HashSet<>();

    private static void consume(String bootstrap, String topic, int count) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "group.id", topic, "auto.offset.reset", "earliest", "auto.commit.interval.ms", 100);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (READ.size() < count) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    if (READ.isEmpty()) {
                        System.out.println("ready");
                    }
                    READ.add(record.value());
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        Thread consumer = new Thread(() -> consume(bootstrap, topic, count));
        consumer.start();
        int acked = 0;
        List<String> failed = new ArrayList<>();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "retry.backoff.ms", 20);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int n = 0; n < count; n++) {
                sent.add(producer.send(new ProducerRecord<>(topic, n % 3, null, Integer.toString(n))));
                Thread.sleep(8);
            }
        }
        for (Future<RecordMetadata> one : sent) {
            try {
                one.get();
                acked++;
            } catch (Exception failure) {
                failed.add(failure.toString());
            }
        }
        consumer.join();
        System.out.println(new ObjectMapper().writeValueAsString(Map.of("acked", acked, "failed", failed, "read", READ.size())));
    }
}
