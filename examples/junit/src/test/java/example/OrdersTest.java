package example;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.kafka.ConfluentKafkaContainer;
import org.testcontainers.kafka.KafkaContainer;
import org.testcontainers.utility.DockerImageName;

/** Test with kbroker's image, started by the classes for Kafka's images: only the image's name differs. */
class OrdersTest {
    private static final DockerImageName IMAGE = DockerImageName.parse(System.getProperty("kbroker.image", "kbroker"));

    static List<GenericContainer<?>> containers() {
        return List.of(
                new KafkaContainer(IMAGE.asCompatibleSubstituteFor("apache/kafka")),
                new ConfluentKafkaContainer(IMAGE.asCompatibleSubstituteFor("confluentinc/cp-kafka")));
    }

    @ParameterizedTest
    @MethodSource("containers")
    void anOrderIsReadBack(GenericContainer<?> container) throws Exception {
        try (container) {
            container.start();
            String bootstrap = container.getHost() + ":" + container.getMappedPort(9092);
            place(bootstrap, "ada", "3");
            assertEquals(Map.entry("ada", "3"), next(bootstrap));
        }
    }

    private static void place(String bootstrap, String customer, String amount) throws Exception {
        var settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("orders", customer, amount)).get();
        }
    }

    private static Map.Entry<String, String> next(String bootstrap) {
        var settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", "billing");
        settings.put("auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("orders"));
            long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
            while (System.nanoTime() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    return Map.entry(record.key(), record.value());
                }
            }
        }
        throw new AssertionError("no order within 30 s");
    }
}
