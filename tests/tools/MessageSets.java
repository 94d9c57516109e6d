import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.TimestampType;

/**
 * Writes message sets of magic 0 and 1 as tests/golden/message-sets-java-3.9.2.b64 holds them.
 * Run: java -cp kafka-clients-3.9.2.jar:snappy-java-*.jar:lz4-java-*.jar:slf4j-api-*.jar MessageSets.java
 */
public class MessageSets {
    public static void main(String[] args) throws Exception {
        for (byte magic = 0; magic <= 1; magic++)
            for (String codec : List.of("none", "gzip", "snappy", "lz4"))
                for (int count : new int[] {1, 7, 1600})
                    if (count < 1000 || !codec.equals("none") && (magic == 1 || codec.equals("lz4")))
                        System.out.println("set " + magic + " " + codec + " " + count + "\n" + set(magic, codec, count));
    }

    static String set(byte magic, String codec, int count) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20), magic,
            Compression.of(CompressionType.forName(codec)).build(), TimestampType.CREATE_TIME, 40L);
        for (int n = 0; n < count; n++) {
            byte[] key = n % 2 == 0 ? null : "key".getBytes();
            byte[] value = n % 4 == 3 ? null : ("value of the record " + (count > 100 ? "" : n)).getBytes();
            builder.append(1700000000000L, key, value);
        }
        MemoryRecords records = builder.build();
        byte[] bytes = new byte[records.sizeInBytes()];
        records.buffer().duplicate().get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }
}
