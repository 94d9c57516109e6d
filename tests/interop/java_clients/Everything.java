import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.*;

/**
 * Produces with every codec, in a transaction and without an answer, consumes in a group, and makes every admin call
 * that Kafka 2.8 had. Prints one line of JSON for each client id: what Java's own metrics counted.
 *
 * Arguments: bootstrap servers, topic, prefix of the client ids, records for each codec.
 */
public final class Everything {
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    private static String bootstrap, topic, prefix;
    private static int records;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        prefix = arguments[2];
        records = Integer.parseInt(arguments[3]);
        try (Admin admin = Admin.create(settings("create"))) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
        }
        for (String codec : CODECS) {
            produce("produce-" + codec, Map.of("compression.type", codec, "acks", "all"));
        }
        produce("produce-acks-0", Map.of("acks", "0", "enable.idempotence", "false"));
        produce("produce-transaction", Map.of("transactional.id", prefix + "-x"));
        consume("consume", (CODECS.size() + 2) * records);
        administer("administer");
    }

    private static Properties settings(String role) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", prefix + "-" + role);
        return settings;
    }

    private static void produce(String role, Map<String, String> chosen) {
        Properties settings = settings(role);
        settings.putAll(chosen);
        settings.put("linger.ms", "5");
        boolean transactional = chosen.containsKey("transactional.id");
        List<Metric> metrics;
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (transactional) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            for (int n = 0; n < records; n++) {
                byte[] value = (role + " " + n + " ").repeat(n % 40).getBytes();
                producer.send(new ProducerRecord<>(topic, n % 2, null, value));
            }
            producer.flush();
            if (transactional) {
                producer.commitTransaction();
            }
            metrics = new ArrayList<>(producer.metrics().values());
        }
        report(role, "producer-metrics", metrics, "record-send-total");
    }

    private static void consume(String role, int expected) {
        Properties settings = settings(role);
        settings.put("group.id", prefix + "-group");
        settings.put("auto.offset.reset", "earliest");
        List<Metric> metrics;
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            int read = 0;
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (read < expected && System.nanoTime() < end) {
                read += consumer.poll(Duration.ofMillis(200)).count();
            }
            if (read != expected) {
                throw new IllegalStateException("consumed " + read + " of " + expected);
            }
            consumer.commitSync();
            metrics = new ArrayList<>(consumer.metrics().values());
        }
        report(role, "consumer-metrics", metrics, "");
    }

    private static void administer(String role) throws Exception {
        ConfigResource config = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        TopicPartition first = new TopicPartition(topic, 0);
        List<Metric> metrics;
        try (Admin admin = Admin.create(settings(role))) {
            attempt(admin.listTopics().names());
            attempt(either(admin.describeTopics(Set.of(topic)), "allTopicNames", "all"));
            attempt(admin.describeCluster().nodes());
            attempt(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
            attempt(admin.describeConfigs(Set.of(config)).all());
            attempt(admin.incrementalAlterConfigs(Map.of(config, List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET)))).all());
            attempt(admin.listOffsets(Map.of(first, OffsetSpec.latest())).all());
            attempt(admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(1))).all());
            attempt(admin.describeLogDirs(Set.of(1)).descriptions().get(1));
            attempt(admin.listConsumerGroups().all());
            attempt(admin.describeConsumerGroups(Set.of(prefix + "-group")).all());
            attempt(admin.listConsumerGroupOffsets(prefix + "-group").partitionsToOffsetAndMetadata());
            attempt(admin.deleteConsumerGroupOffsets(prefix + "-group", Set.of(first)).all());
            attempt(admin.deleteConsumerGroups(Set.of(prefix + "-group")).all());
            attempt(admin.describeAcls(AclBindingFilter.ANY).values());
            attempt(admin.describeClientQuotas(ClientQuotaFilter.all()).entities());
            attempt(admin.describeUserScramCredentials().all());
            attempt(admin.listPartitionReassignments().reassignments());
            attempt(admin.describeFeatures().featureMetadata());
            attempt(admin.describeDelegationToken().delegationTokens());
            attempt(admin.deleteTopics(Set.of(topic)).all());
            metrics = new ArrayList<>(admin.metrics().values());
        }
        report(role, "admin-client-metrics", metrics, "");
    }

    /** Waits for an answer; that the broker refuses is one, too. */
    private static void attempt(KafkaFuture<?> future) throws Exception {
        try {
            future.get(30, TimeUnit.SECONDS);
        } catch (ExecutionException refused) {
            System.err.println(refused.getCause());
        }
    }

    /** What the first method of these names returns: Kafka 4 took the older one away. */
    private static KafkaFuture<?> either(Object result, String... names) throws Exception {
        for (String name : names) {
            try {
                return (KafkaFuture<?>) result.getClass().getMethod(name).invoke(result);
            } catch (NoSuchMethodException absent) {
                continue;
            }
        }
        throw new NoSuchMethodException(String.join(", ", names));
    }

    private static void report(String role, String group, List<Metric> metrics, String recordsName) {
        Map<String, Long> sums = new TreeMap<>();
        List<String> wanted = List.of("request-total", "response-total", "outgoing-byte-total", "incoming-byte-total");
        for (Metric metric : metrics) {
            MetricName name = metric.metricName();
            boolean whole = name.group().equals(group) && name.tags().keySet().equals(Collections.singleton("client-id"));
            if (whole && (wanted.contains(name.name()) || name.name().equals(recordsName))) {
                sums.put(name.name(), ((Double) metric.metricValue()).longValue());
            }
        }
        StringBuilder line = new StringBuilder("{\"client_id\": \"" + prefix + "-" + role + "\"");
        sums.forEach((name, value) -> line.append(", \"" + name.replace('-', '_') + "\": " + value));
        System.out.println(line + "}");
    }
}
