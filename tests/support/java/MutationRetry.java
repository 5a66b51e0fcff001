// Reaction of Kafka's own Admin to error 89: by default it waits and repeats the request, on demand it fails at once.
// java -cp CLASSPATH MutationRetry.java BOOTSTRAP CLIENT_ID
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.DeleteTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.errors.ThrottlingQuotaExceededException;

public class MutationRetry {
    interface Change {
        KafkaFuture<Void> start();
    }

    static void attempt(String what, Change change) throws InterruptedException {
        long begun = System.nanoTime();
        String result = "done";
        try {
            change.start().get();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof ThrottlingQuotaExceededException refused)
                result = "refused " + refused.throttleTimeMs() + " " + refused.getMessage().replace(' ', '_');
            else
                result = "failed " + error.getCause();
        }
        System.out.println(what + " " + (System.nanoTime() - begun) / 1_000_000 + " " + result);
    }

    static List<NewTopic> topic(String name, int partitions) {
        return List.of(new NewTopic(name, partitions, (short) 1));
    }

    public static void main(String[] args) throws InterruptedException {
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "client.id", args[1]);
        try (Admin admin = Admin.create(settings)) {
            attempt("burst", () -> admin.createTopics(topic("many", 14)).all());
            attempt("create-once", () -> admin.createTopics(topic("once", 1),
                new CreateTopicsOptions().retryOnQuotaViolation(false)).all());
            attempt("grow-once", () -> admin.createPartitions(Map.of("many", NewPartitions.increaseTo(15)),
                new CreatePartitionsOptions().retryOnQuotaViolation(false)).all());
            attempt("create", () -> admin.createTopics(topic("later", 4)).all());
            attempt("delete-once", () -> admin.deleteTopics(List.of("later"),
                new DeleteTopicsOptions().retryOnQuotaViolation(false)).all());
            attempt("delete", () -> admin.deleteTopics(List.of("later")).all());
        }
    }
}
