import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after another in one JVM.
 *
 * Each line of standard input is a JSON object: the class "main", its "args", and the "input" that the tool reads. Each
 * line of standard output is the answer: "status", "stdout", "stderr".
 */
public class KafkaTools {
    static class Exited extends Error {
        Exited() {
            super(null, null, false, false); // without its stack, which many tools would print
        }
    }

    static Integer status;

    /** What a tool does when its JVM ends: some close their client there, which sends what is left. */
    static final List<Runnable> hooks = new ArrayList<>();

    public static void main(String[] unused) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        // Scala and the loggers keep the stream that they find first: it stays, and its target is emptied.
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            JsonNode tool = json.readTree(line);
            List<String> args = new ArrayList<>();
            tool.get("args").forEach(arg -> args.add(arg.asText()));
            System.setIn(new ByteArrayInputStream(tool.get("input").asText().getBytes(StandardCharsets.UTF_8)));
            int code = run(tool.get("main").asText(), args.toArray(new String[0]));
            hooks.forEach(Runnable::run);
            hooks.clear();
            System.out.flush();
            System.err.flush();
            answers.println(json.writeValueAsString(Map.of(
                "status", code,
                "stdout", out.toString(StandardCharsets.UTF_8),
                "stderr", err.toString(StandardCharsets.UTF_8))));
            answers.flush();
            out.reset();
            err.reset();
        }
        answers.flush();
        Runtime.getRuntime().halt(0); // no thread that a tool has left keeps this process
    }

    /** What the tool exits with: many say it more than once, as the exit does not end them here. */
    static int run(String name, String[] args) throws Exception {
        status = null;
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Exited)) {
                error.getCause().printStackTrace();
                return status == null ? 1 : status;
            }
        }
        return status == null ? 0 : status;
    }

    static void exit(int code) {
        if (status == null) {
            status = code;
        }
        throw new Exited();
    }
}
