import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Members of both group protocols on Kafka's own client: one line per successful step, exit status 1 for a failed one.
 *
 * <p>Groups BOOTSTRAP TOPIC, a topic of four partitions.
 */
public final class Groups {
    private static final int PARTITIONS = 4;
    private static final long LIMIT_MS = 40_000;

    private final String bootstrap;
    private final String topic;
    private final Map<String, Integer> read = new HashMap<>();
    private int sent;

    private Groups(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.topic = topic;
    }

    /** A consumer that polls and commits on its own thread. */
    private final class Member {
        volatile Set<TopicPartition> has = Set.of();
        volatile boolean stops;
        volatile RuntimeException failure;
        private final Thread thread;

        Member(String group, String protocol, String instance, boolean byPattern) {
            Map<String, Object> how = new HashMap<>(Map.of(
                    "bootstrap.servers", bootstrap, "group.id", group, "group.protocol", protocol,
                    "auto.offset.reset", "earliest", "enable.auto.commit", false, "metadata.max.age.ms", 1000));
            if (protocol.equals("classic")) {
                how.put("heartbeat.interval.ms", 200);
                how.put("session.timeout.ms", 6000);
            }
            if (instance != null) {
                how.put("group.instance.id", instance);
            }
            thread = new Thread(() -> run(how, byPattern));
            thread.start();
        }

        private void run(Map<String, Object> how, boolean byPattern) {
            try (var consumer = new KafkaConsumer<>(how, new StringDeserializer(), new StringDeserializer())) {
                if (byPattern) {
                    consumer.subscribe(new SubscriptionPattern(topic.substring(0, topic.length() - 2) + ".+"));
                } else {
                    consumer.subscribe(List.of(topic));
                }
                while (!stops) {
                    var records = consumer.poll(Duration.ofMillis(50));
                    for (ConsumerRecord<String, String> record : records) {
                        synchronized (read) {
                            read.merge(record.value(), 1, Integer::sum);
                        }
                    }
                    if (!records.isEmpty()) {
                        consumer.commitSync();
                    }
                    has = new HashSet<>(consumer.assignment());
                }
            } catch (RuntimeException error) {
                failure = error;
            }
        }

        void close() throws InterruptedException {
            stops = true;
            thread.join(LIMIT_MS);
        }
    }

    private void step(String name, BooleanSupplier condition) throws InterruptedException {
        long deadline = System.currentTimeMillis() + LIMIT_MS;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline) {
                System.err.println("not reached: " + name);
                System.exit(1);
            }
            Thread.sleep(20);
        }
        System.out.println(name);
    }

    private boolean share(Member... members) {
        Set<TopicPartition> all = new HashSet<>();
        int sum = 0;
        for (Member member : members) {
            if (member.failure != null) {
                throw member.failure;
            }
            Set<TopicPartition> has = member.has;
            if (has.isEmpty()) {
                return false;
            }
            all.addAll(has);
            sum += has.size();
        }
        return all.size() == PARTITIONS && sum == PARTITIONS;
    }

    private void send() throws Exception {
        try (var producer = new KafkaProducer<String, String>(
                Map.of("bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 20; number++) {
                producer.send(new ProducerRecord<>(topic, number % PARTITIONS, null, "value " + sent++)).get();
            }
        }
    }

    /** Whether all records were read; a record that is read twice fails its step. */
    private boolean isRead() {
        synchronized (read) {
            return read.size() == sent && read.values().stream().allMatch(count -> count == 1);
        }
    }

    private String type(Admin admin, String group) {
        try {
            for (var listed : admin.listGroups().all().get()) {
                if (listed.groupId().equals(group)) {
                    return listed.type().map(Object::toString).orElse("?");
                }
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        return "none";
    }

    private void run() throws Exception {
        String group = topic + "-group";
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            send();
            Member one = new Member(group, "consumer", null, false);
            step("one has all", () -> share(one) && isRead());
            Member two = new Member(group, "consumer", null, false);
            step("two share", () -> share(one, two));
            Member old = new Member(group, "classic", null, false);
            step("a classic member has its part", () -> share(one, two, old));
            send();
            step("each record is read once", this::isRead);
            one.close();
            step("one has left", () -> share(two, old));
            two.close();
            step("the classic member has all", () -> share(old) && type(admin, group).equals("Classic"));
            Member next = new Member(group, "consumer", null, false);
            step("upgraded with a living member", () -> share(old, next) && type(admin, group).equals("Consumer"));
            send();
            step("each record is still read once", this::isRead);
            old.close();
            step("the newer member has all", () -> share(next));
            next.close();
            Member first = new Member(group, "consumer", "static", false);
            step("a static member", () -> share(first));
            first.close();
            send();
            Member again = new Member(group, "consumer", "static", false);
            step("comes back", () -> share(again) && isRead());
            again.close();
            Member pattern = new Member(group + "-pattern", "consumer", null, true);
            step("a pattern", () -> share(pattern));
            pattern.close();
        }
    }

    public static void main(String[] args) throws Exception {
        try {
            new Groups(args[0], args[1]).run();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }
}
