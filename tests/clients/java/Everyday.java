import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * The everyday scenario on Kafka's own client, with one line of JSON per step; everyday.py describes the steps and their results.
 *
 * <p>Everyday BOOTSTRAP TOPIC START_MS
 */
public final class Everyday {
    private static final int RECORDS = 10;
    private static final int GROUP_PARTITIONS = 4;
    private static final int PER_PHASE = 10;
    private static final int TIMES = 50;

    private final String bootstrap;
    private final String topic;
    private final long startMs;

    private Everyday(String bootstrap, String topic, long startMs) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.startMs = startMs;
    }

    private List<String> names() {
        return List.of(topic, topic + "-time", topic + "-group");
    }

    private Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    private KafkaConsumer<String, String> consumer(Map<String, Object> more) {
        Map<String, Object> settings = new TreeMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private Map<String, Object> create() throws Exception {
        int[] partitions = {6, 1, GROUP_PARTITIONS};
        List<NewTopic> wanted = new ArrayList<>();
        for (int i = 0; i < partitions.length; i++) {
            wanted.add(new NewTopic(names().get(i), partitions[i], (short) 1));
        }
        try (Admin admin = admin()) {
            admin.createTopics(wanted).all().get();
        }
        return Map.of("topics", names());
    }

    private Map<String, Object> send(List<ProducerRecord<String, String>> records, String codec, boolean idempotent) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "compression.type", codec, "enable.idempotence", idempotent,
            "linger.ms", 20, "acks", idempotent ? "all" : "1");
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (var record : records) {
                sent.add(producer.send(record));
            }
        }
        List<Long> offsets = new ArrayList<>();
        for (var future : sent) {
            offsets.add(future.get().offset());
        }
        return Map.of("offsets", offsets);
    }

    private Map<String, Object> codec(String note, int partition, String codec, boolean idempotent) throws Exception {
        List<ProducerRecord<String, String>> records = new ArrayList<>();
        for (int n = 0; n < RECORDS; n++) {
            records.add(new ProducerRecord<>(topic, partition, null, note + " " + n + " " + "abc ".repeat(30)));
        }
        return send(records, codec, idempotent);
    }

    private Map<String, Object> read() {
        Map<Integer, List<String>> values = new TreeMap<>();
        try (var consumer = consumer(Map.of())) {
            List<TopicPartition> places = new ArrayList<>();
            for (int p = 0; p < 6; p++) {
                places.add(new TopicPartition(topic, p));
            }
            consumer.assign(places);
            consumer.seekToBeginning(places);
            int count = 0;
            for (long deadline = deadline(); count < 6 * RECORDS && System.nanoTime() < deadline;) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    values.computeIfAbsent(record.partition(), key -> new ArrayList<>()).add(record.value());
                    count++;
                }
            }
        }
        return Map.of("values", values);
    }

    private static long deadline() {
        return System.nanoTime() + Duration.ofMinutes(1).toNanos();
    }

    /** A member that counts records after their commit. */
    private final class Member extends Thread {
        private final String name;
        private final List<List<Object>> reads;
        private volatile Set<Integer> assigned = Set.of();
        private volatile boolean leaving;
        private volatile Exception failure;

        Member(String name, List<List<Object>> reads) {
            this.name = name;
            this.reads = reads;
            start();
        }

        @Override
        public void run() {
            String from = topic + "-group";
            try (var consumer = consumer(Map.of("group.id", from, "heartbeat.interval.ms", 300))) {
                consumer.subscribe(List.of(from));
                while (!leaving) {
                    List<ConsumerRecord<String, String>> found = new ArrayList<>();
                    consumer.poll(Duration.ofMillis(200)).forEach(found::add);
                    if (!found.isEmpty()) {
                        consumer.commitSync();
                        for (var record : found) {
                            reads.add(List.of(name, record.partition(), record.offset(), record.value()));
                        }
                    }
                    Set<Integer> partitions = new TreeSet<>();
                    consumer.assignment().forEach(place -> partitions.add(place.partition()));
                    assigned = partitions;
                }
            } catch (Exception e) {
                failure = e;
            }
        }

        void leave() throws InterruptedException {
            leaving = true;
            join(30_000);
        }
    }

    private static void until(String what, Collection<Member> members, BooleanSupplier condition) throws Exception {
        for (long deadline = deadline(); !condition.getAsBoolean(); Thread.sleep(50)) {
            for (var member : members) {
                if (member.failure != null) {
                    throw member.failure;
                }
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not within a minute: " + what);
            }
        }
    }

    private Map<String, Set<Integer>> phase(int number, Map<String, Member> members, List<List<Object>> reads) throws Exception {
        int share = GROUP_PARTITIONS / members.size();
        until("a share for each member", members.values(),
            () -> members.values().stream().allMatch(member -> member.assigned.size() == share));
        Map<String, Set<Integer>> held = new TreeMap<>();
        members.forEach((name, member) -> held.put(name, member.assigned));
        List<ProducerRecord<String, String>> records = new ArrayList<>();
        for (int n = number * PER_PHASE; n < (number + 1) * PER_PHASE; n++) {
            for (int p = 0; p < GROUP_PARTITIONS; p++) {
                records.add(new ProducerRecord<>(topic + "-group", p, null, p + "-" + n));
            }
        }
        send(records, "none", false);
        until("all is read", members.values(), () -> reads.size() >= GROUP_PARTITIONS * PER_PHASE * (number + 1));
        return held;
    }

    private Map<String, Object> group() throws Exception {
        List<List<Object>> reads = Collections.synchronizedList(new ArrayList<>());
        Map<String, Member> members = new TreeMap<>();
        List<Map<String, Set<Integer>>> held = new ArrayList<>();
        try {
            members.put("a", new Member("a", reads));
            held.add(phase(0, members, reads));
            members.put("b", new Member("b", reads));
            held.add(phase(1, members, reads));
            members.remove("a").leave();
            held.add(phase(2, members, reads));
        } finally {
            for (var member : members.values()) {
                member.leave();
            }
        }
        return Map.of("reads", reads, "held", held);
    }

    private Map<String, Object> byTime() throws Exception {
        var place = new TopicPartition(topic + "-time", 0);
        List<ProducerRecord<String, String>> records = new ArrayList<>();
        for (int n = 0; n < TIMES; n++) {
            records.add(new ProducerRecord<>(place.topic(), 0, startMs + 10 * n, null, "record " + n));
        }
        send(records, "gzip", false);
        List<String> values = new ArrayList<>();
        try (var consumer = consumer(Map.of())) {
            consumer.assign(List.of(place));
            long offset = consumer.offsetsForTimes(Map.of(place, startMs + 171)).get(place).offset();
            consumer.seek(place, offset);
            for (long deadline = deadline(); values.size() < TIMES - 18 && System.nanoTime() < deadline;) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
            }
            return Map.of("offset", offset, "values", values);
        }
    }

    private List<String> listed(Admin admin) throws Exception {
        Set<String> found = admin.listTopics().names().get();
        return names().stream().filter(found::contains).toList();
    }

    private Map<String, Object> list() throws Exception {
        try (Admin admin = admin()) {
            return Map.of("topics", listed(admin));
        }
    }

    private Map<String, Object> describe() throws Exception {
        try (Admin admin = admin()) {
            var found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            return Map.of("leaders", found.partitions().stream().map(partition -> partition.leader().id()).toList());
        }
    }

    private static String retentionMs(Admin admin, ConfigResource resource) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value();
    }

    private Map<String, Object> configs() throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var change = new AlterConfigOp(new ConfigEntry("retention.ms", "123456789"), AlterConfigOp.OpType.SET);
        try (Admin admin = admin()) {
            String before = retentionMs(admin, resource);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            String after = before;
            for (long deadline = deadline(); after.equals(before) && System.nanoTime() < deadline;) {
                after = retentionMs(admin, resource);
            }
            return Map.of("before", before, "after", after);
        }
    }

    private Map<String, Object> delete() throws Exception {
        String name = topic + "-time";
        try (Admin admin = admin()) {
            admin.deleteTopics(List.of(name)).all().get();
            boolean left = true;
            for (long deadline = deadline(); left && System.nanoTime() < deadline;) {
                left = listed(admin).contains(name);
            }
            return Map.of("left", left ? List.of(name) : List.of());
        }
    }

    public static void main(String[] args) throws Exception {
        var everyday = new Everyday(args[0], args[1], Long.parseLong(args[2]));
        Map<String, Callable<Map<String, Object>>> steps = new LinkedHashMap<>();
        steps.put("version", () -> Map.of("version", AppInfoParser.getVersion()));
        steps.put("create", everyday::create);
        List<String> codecs = List.of("none", "gzip", "snappy", "lz4", "zstd");
        for (String codec : codecs) {
            steps.put(codec, () -> everyday.codec(codec, codecs.indexOf(codec), codec, false));
        }
        steps.put("idempotent", () -> everyday.codec("idempotent", 5, "none", true));
        steps.put("read", everyday::read);
        steps.put("group", everyday::group);
        steps.put("by time", everyday::byTime);
        steps.put("list", everyday::list);
        steps.put("describe", everyday::describe);
        steps.put("configs", everyday::configs);
        steps.put("delete", everyday::delete);
        var json = new ObjectMapper();
        for (var step : steps.entrySet()) {
            Map<String, Object> said = new TreeMap<>();
            try {
                said.putAll(step.getValue().call());
            } catch (Exception e) {
                said.put("error", String.valueOf(e));
            }
            said.put("step", step.getKey());
            System.out.println(json.writeValueAsString(said));
        }
    }
}
