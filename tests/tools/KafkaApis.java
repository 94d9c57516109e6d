import java.lang.reflect.Array;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;

/**
 * Prints what the ApiKeys of kafka-clients jars have, a line for each: jar, key, name, oldest and newest version.
 * For releases whose jars hold no message definitions, or definitions that do not say who serves a message.
 * Run: java KafkaApis.java slf4j-api-*.jar kafka-clients-*.jar …
 */
public class KafkaApis {
    public static void main(String[] args) throws Exception {
        for (int i = 1; i < args.length; i++) {
            URL[] jars = {Path.of(args[0]).toUri().toURL(), Path.of(args[i]).toUri().toURL()};
            try (URLClassLoader loader = new URLClassLoader(jars, ClassLoader.getPlatformClassLoader())) {
                print(Path.of(args[i]).getFileName().toString(), loader);
            }
        }
    }

    static void print(String jar, ClassLoader loader) throws Exception {
        Class<?> keys = loader.loadClass("org.apache.kafka.common.protocol.ApiKeys");
        for (Object api : keys.getEnumConstants()) {
            short key = keys.getField("id").getShort(api);
            int oldest = 0, newest;
            try {
                oldest = (short) keys.getMethod("oldestVersion").invoke(api);
                newest = (short) keys.getMethod("latestVersion").invoke(api);
            } catch (NoSuchMethodException inEarlyReleases) {
                Class<?> protocol = loader.loadClass("org.apache.kafka.common.protocol.Protocol");
                Object schemas = Array.get(protocol.getField("REQUESTS").get(null), key);
                newest = schemas == null ? -1 : Array.getLength(schemas) - 1;
                while (newest >= oldest && Array.get(schemas, oldest) == null)
                    oldest++;
            }
            if (newest >= oldest && enabled(keys, api))
                System.out.println(jar + " " + key + " " + keys.getField("name").get(api) + " " + oldest + " " + newest);
        }
    }

    /** In 2.7 some are there that no broker serves. */
    static boolean enabled(Class<?> keys, Object api) throws Exception {
        try {
            return keys.getField("isEnabled").getBoolean(api);
        } catch (NoSuchFieldException inOtherReleases) {
            return true;
        }
    }
}
