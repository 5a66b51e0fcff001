import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Predicate;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Members of share groups on Kafka's own client.
 *
 * <p>ShareMembers BOOTSTRAP steps TOPIC: one line per successful step, exit status 1 for a failed one.
 *
 * <p>ShareMembers BOOTSTRAP fill TOPIC COUNT: sends records.
 *
 * <p>ShareMembers BOOTSTRAP load TOPIC GROUP FILE COUNT: members that accept and release until standard input closes. Lines of the
 * file: "read PARTITION OFFSET DELIVERIES", "accepted PARTITION OFFSET" and "released PARTITION OFFSET" once the broker has responded; "unknown"
 * for an acceptance without a response.
 */
public final class ShareMembers {
    private static final long LIMIT_MS = 60_000;

    private final String bootstrap;
    private final String topic;
    private volatile boolean stops;
    private int sent;

    private ShareMembers(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.topic = topic;
    }

    private KafkaShareConsumer<String, String> member(String group, String mode) {
        Map<String, Object> how = Map.of(
                "bootstrap.servers", bootstrap, "group.id", group, "share.acknowledgement.mode", mode, "fetch.max.wait.ms", 200,
                "metadata.max.age.ms", 1000, "reconnect.backoff.max.ms", 200, "max.poll.records", 50);
        var consumer = new KafkaShareConsumer<>(how, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    private static void readFromTheStart(String bootstrap, String group) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            var earliest = new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(earliest))).all().get();
        }
    }

    private void send(int count) throws Exception {
        try (var producer = new KafkaProducer<>(
                Map.<String, Object>of("bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, "v" + sent++)).get();
            }
        }
    }

    private static Map<Long, ConsumerRecord<String, String>> poll(
            KafkaShareConsumer<String, String> consumer, int count, Predicate<ConsumerRecord<String, String>> matches) {
        return poll(consumer, count, matches, false);
    }

    /** Polls until enough matching records have arrived, optionally accepts them, and returns them by offset. */
    private static Map<Long, ConsumerRecord<String, String>> poll(
            KafkaShareConsumer<String, String> consumer,
            int count,
            Predicate<ConsumerRecord<String, String>> matches,
            boolean accepts) {
        var found = new TreeMap<Long, ConsumerRecord<String, String>>();
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (found.size() < count) {
            for (var record : consumer.poll(Duration.ofMillis(200))) {
                check(matches.test(record), "unexpected record " + record.offset() + ", delivery " + record.deliveryCount());
                found.put(record.offset(), record);
                if (accepts) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
            }
            check(System.currentTimeMillis() < end, "only " + found.keySet());
        }
        return found;
    }

    private static Predicate<ConsumerRecord<String, String>> delivery(int count) {
        return record -> record.deliveryCount().orElseThrow() == count;
    }

    private static void committed(KafkaShareConsumer<String, String> consumer) {
        for (var result : consumer.commitSync().values()) {
            check(result.isEmpty(), "commit: " + result);
        }
    }

    private static void check(boolean isTrue, String otherwise) {
        if (!isTrue) {
            throw new IllegalStateException(otherwise);
        }
    }

    private void steps() throws Exception {
        readFromTheStart(bootstrap, topic);
        send(10);
        try (var consumer = member(topic, "implicit")) {
            poll(consumer, 10, delivery(1));
            committed(consumer);
        }
        System.out.println("implicit");
        send(6);
        try (var consumer = member(topic, "explicit")) {
            var records = new ArrayList<>(poll(consumer, 6, delivery(1).and(record -> record.offset() >= 10)).values());
            consumer.acknowledge(records.get(0), AcknowledgeType.ACCEPT);
            consumer.acknowledge(records.get(1), AcknowledgeType.REJECT);
            records.subList(2, 5).forEach(record -> consumer.acknowledge(record, AcknowledgeType.RELEASE));
            consumer.acknowledge(records.get(5), AcknowledgeType.RENEW);
            committed(consumer);
            System.out.println("accepted, rejected, released");
            poll(consumer, 4, record -> delivery(record.offset() == 15 ? 1 : 2).test(record) && record.offset() >= 12, true);
            System.out.println("renewed, and released ones came again");
            committed(consumer);
        }
        try (var consumer = member(topic, "explicit")) {
            send(1);
            poll(consumer, 1, record -> record.offset() == 16);
        } // closed without an acknowledgement
        try (var consumer = member(topic, "implicit"); var other = member(topic, "implicit")) {
            poll(consumer, 1, delivery(2).and(record -> record.offset() == 16));
            committed(consumer);
            System.out.println("a closed member released its record");
            send(40);
            var seen = ConcurrentHashMap.<Long>newKeySet();
            long end = System.currentTimeMillis() + LIMIT_MS;
            while (seen.size() < 40) {
                for (var each : List.of(consumer, other)) {
                    for (var record : each.poll(Duration.ofMillis(100))) {
                        check(seen.add(record.offset()), record.offset() + " came twice");
                    }
                }
                check(System.currentTimeMillis() < end, "only " + seen.size());
            }
            System.out.println("two members share");
        }
    }

    /** A member of the load, on its own thread. */
    private void load(String group, PrintStream out, long seed) {
        var random = new Random(seed);
        var decided = new HashMap<String, AcknowledgeType>();
        try (var consumer = member(group, "explicit")) {
            consumer.setAcknowledgementCommitCallback((offsets, failure) -> {
                for (Map.Entry<TopicIdPartition, Set<Long>> each : offsets.entrySet()) {
                    for (long offset : each.getValue()) {
                        String place = each.getKey().partition() + " " + offset;
                        var type = decided.remove(place);
                        if (failure == null && type != null) {
                            out.println((type == AcknowledgeType.ACCEPT ? "accepted " : "released ") + place);
                        } else if (type == AcknowledgeType.ACCEPT) {
                            out.println("unknown " + place);
                        }
                    }
                }
            });
            while (!stops) {
                try {
                    for (var record : consumer.poll(Duration.ofMillis(100))) {
                        String place = record.partition() + " " + record.offset();
                        out.println("read " + place + " " + record.deliveryCount().orElseThrow());
                        boolean releases = record.deliveryCount().orElseThrow() < 3 && random.nextInt(10) == 0;
                        var type = releases ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
                        decided.put(place, type);
                        consumer.acknowledge(record, type);
                    }
                    consumer.commitSync(Duration.ofSeconds(10));
                } catch (RuntimeException failure) {
                    out.println("note " + failure.getClass().getSimpleName());
                }
            }
        }
    }

    public static void main(String[] args) throws Exception {
        var members = new ShareMembers(args[0], args[2]);
        if (args[1].equals("fill")) {
            members.send(Integer.parseInt(args[3]));
            return;
        }
        if (args[1].equals("steps")) {
            members.steps();
            return;
        }
        readFromTheStart(args[0], args[3]);
        try (var out = new PrintStream(new java.io.FileOutputStream(args[4], true), true)) {
            var threads = new ArrayList<Thread>();
            for (int i = 0; i < Integer.parseInt(args[5]); i++) {
                long seed = i;
                threads.add(new Thread(() -> members.load(args[3], out, seed)));
            }
            threads.forEach(Thread::start);
            while (System.in.read() >= 0) {
                continue;
            }
            members.stops = true;
            for (Thread thread : threads) {
                thread.join();
            }
        }
    }
}
