import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads messages with Kafka's own classes: from stdin api key (int16), version (int16), 1 for a response (int8), length
 * (int32) and body; to stdout a line for each: its JSON if the same bytes come out again, else what went wrong.
 */
public class Reencode {
    public static void main(String[] args) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        while (true) {
            short key;
            try {
                key = in.readShort();
            } catch (EOFException end) {
                break;
            }
            short version = in.readShort();
            boolean response = in.readBoolean();
            byte[] body = new byte[in.readInt()];
            in.readFully(body);
            out.println(line(key, version, response, body));
        }
        out.flush();
    }

    private static String line(short key, short version, boolean response, byte[] body) {
        try {
            ApiMessageType type = ApiMessageType.fromApiKey(key);
            ApiMessage message = response ? type.newResponse() : type.newRequest();
            ByteBuffer buffer = ByteBuffer.wrap(body);
            message.read(new ByteBufferAccessor(buffer), version);
            if (buffer.hasRemaining())
                return "left over: " + buffer.remaining();
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer again = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(again), cache, version);
            if (!Arrays.equals(body, again.array()))
                return "other bytes";
            Class<?> converter = Class.forName(message.getClass().getName() + "JsonConverter");
            Method write = converter.getMethod("write", message.getClass(), short.class, boolean.class);
            return ((JsonNode) write.invoke(null, message, version, false)).toString();
        } catch (Throwable error) {
            return error.toString().replace('\n', ' ');
        }
    }
}
