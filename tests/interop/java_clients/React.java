import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Scanner;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** See tests/interop/reactions. Arguments: role, bootstrap servers, topic, client id. */
public final class React {
    private static final int WAIT = 15;

    interface Attempt {
        String run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Attempt attempt = client(arguments[0], arguments[1], arguments[2], arguments[3]);
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            lines.nextLine();
            long began = System.nanoTime();
            String said;
            try {
                said = attempt.run();
            } catch (ExecutionException error) {
                said = String.valueOf(error.getCause());
            } catch (Throwable error) {
                said = String.valueOf(error) + (error.getCause() == null ? "" : ", cause: " + error.getCause());
            }
            double seconds = Math.round((System.nanoTime() - began) / 1e8) / 10.0;
            String text = said.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\p{Cntrl}", " ");
            System.out.println("{\"said\": \"" + text + "\", \"heard\": [], \"seconds\": " + seconds + "}");
        }
        System.exit(0);
    }

    private static Attempt client(String role, String bootstrap, String topic, String id) {
        Properties common = new Properties();
        common.putAll(Map.of("bootstrap.servers", bootstrap, "client.id", id));
        switch (role) {
            case "producer": {
                common.putAll(Map.of("delivery.timeout.ms", "10000", "request.timeout.ms", "5000"));
                var producer = new KafkaProducer<>(common, new ByteArraySerializer(), new ByteArraySerializer());
                return () -> {
                    producer.send(new ProducerRecord<>(topic, new byte[1])).get(WAIT, TimeUnit.SECONDS);
                    return "";
                };
            }
            case "consumer": {
                common.putAll(Map.of("group.id", id, "auto.offset.reset", "earliest", "max.poll.records", "1"));
                var consumer = new KafkaConsumer<>(common, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                consumer.subscribe(List.of(topic));
                return () -> consumer.poll(Duration.ofSeconds(WAIT)).isEmpty() ? "nothing" : "";
            }
            default: {
                common.putAll(Map.of("default.api.timeout.ms", "10000", "request.timeout.ms", "5000"));
                var admin = Admin.create(common);
                return () -> {
                    NewTopic made = new NewTopic("new-" + UUID.randomUUID(), 1, (short) 1);
                    admin.createTopics(List.of(made)).all().get(WAIT, TimeUnit.SECONDS);
                    return "";
                };
            }
        }
    }
}
