import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/** Setter of a user's shadow quota through Kafka's Admin, which prints the described quotas. Arguments: bootstrap, user. */
public class ShadowQuotas {
    public static void main(String[] args) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            var user = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, args[1]));
            var op = new ClientQuotaAlteration.Op("shadow.producer_byte_rate", 1000.0);
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(user, List.of(op)))).all().get();
            System.out.println(admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().get(user));
        }
    }
}
