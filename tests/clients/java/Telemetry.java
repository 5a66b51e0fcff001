import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer and a consumer that push their metrics, on Kafka's own client; prints the producer's client instance id.
 *
 * <p>Telemetry BOOTSTRAP TOPIC, until a line arrives on standard input.
 */
public final class Telemetry {
    private Telemetry() {}

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        try (var producer = new KafkaProducer<>(
                        Map.<String, Object>of("bootstrap.servers", bootstrap, "client.id", "java-producer"),
                        new StringSerializer(), new StringSerializer());
                var consumer = new KafkaConsumer<>(
                        Map.<String, Object>of("bootstrap.servers", bootstrap, "client.id", "java-consumer",
                                "group.id", "java-telemetry", "auto.offset.reset", "earliest"),
                        new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            producer.send(new ProducerRecord<>(topic, "first")).get();
            System.out.println(producer.clientInstanceId(Duration.ofSeconds(30)));
            System.out.flush();
            while (System.in.available() == 0) {
                producer.send(new ProducerRecord<>(topic, "next")).get();
                consumer.poll(Duration.ofMillis(20));
            }
        }
    }
}
