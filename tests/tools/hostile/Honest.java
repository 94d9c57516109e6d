import java.io.PrintStream;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * An idempotent producer with acks=all. Prints the value of each acknowledged record, and at the end "failed N".
 *
 * Arguments: bootstrap servers, topic, seconds, records a second.
 */
public final class Honest {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("client.id", "honest-java");
        settings.put("acks", "all");
        settings.put("delivery.timeout.ms", "60000");
        settings.put("request.timeout.ms", "20000");
        int rate = Integer.parseInt(arguments[3]);
        int count = Integer.parseInt(arguments[2]) * rate;
        PrintStream acknowledged = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false);
        AtomicInteger failed = new AtomicInteger();
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            long begun = System.nanoTime();
            for (int n = 0; n < count; n++) {
                long wait = begun + n * 1_000_000_000L / rate - System.nanoTime();
                if (wait > 0) {
                    Thread.sleep(wait / 1_000_000L, (int) (wait % 1_000_000L));
                }
                String value = "java-" + n;
                producer.send(new ProducerRecord<>(arguments[1], value), (stored, error) -> {
                    if (error == null) {
                        acknowledged.println(value);
                    } else {
                        failed.incrementAndGet();
                    }
                });
            }
        }
        acknowledged.println("failed " + failed.get());
        acknowledged.flush();
    }
}
