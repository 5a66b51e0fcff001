import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.BatchMessageListener;
import org.springframework.kafka.listener.ConcurrentMessageListenerContainer;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.util.backoff.FixedBackOff;

/**
 * Spring for Apache Kafka with a KafkaTransactionManager: copies "in" to "out", a batch and its offsets in each transaction.
 *
 * <p>SpringCopy BOOTSTRAP, until it is killed. Every seventh batch fails after half of its records are written, and is rolled back.
 */
public final class SpringCopy {
    private SpringCopy() {}

    public static void main(String[] arguments) throws InterruptedException {
        String bootstrap = arguments[0];
        var producers = new DefaultKafkaProducerFactory<String, String>(
            Map.of("bootstrap.servers", bootstrap, "transaction.timeout.ms", 3000), new StringSerializer(), new StringSerializer());
        producers.setTransactionIdPrefix("spring-"); // transactions of ids that the next start does not use end by their timeout
        var template = new KafkaTemplate<>(producers);
        var consumers = new DefaultKafkaConsumerFactory<String, String>(
            Map.of(
                "bootstrap.servers", bootstrap,
                "auto.offset.reset", "earliest",
                "enable.auto.commit", false,
                "isolation.level", "read_committed",
                "max.poll.records", 50,
                "session.timeout.ms", 2000,
                "heartbeat.interval.ms", 500),
            new StringDeserializer(), new StringDeserializer());
        AtomicInteger batches = new AtomicInteger();
        BatchMessageListener<String, String> copy = (List<ConsumerRecord<String, String>> records) -> {
            boolean fails = batches.incrementAndGet() % 7 == 0;
            for (int at = 0; at < records.size(); at++) {
                if (fails && at >= records.size() / 2) {
                    template.flush();
                    throw new IllegalStateException("this batch is rolled back");
                }
                var record = records.get(at);
                template.send("out", record.partition(), record.key(), record.value());
            }
        };
        ContainerProperties properties = new ContainerProperties("in");
        properties.setGroupId("spring");
        properties.setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers));
        properties.setMessageListener(copy);
        var container = new ConcurrentMessageListenerContainer<>(consumers, properties);
        container.setConcurrency(2);
        container.setAfterRollbackProcessor(new DefaultAfterRollbackProcessor<>(new FixedBackOff(0, FixedBackOff.UNLIMITED_ATTEMPTS)));
        container.start();
        new CountDownLatch(1).await();
    }
}
