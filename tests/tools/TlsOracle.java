import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Scanner;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/** Answers each line of stdin, texts and DER in hexadecimal: "name DER", or "map RULES SUBJECT". */
public class TlsOracle {
    public static void main(String[] arguments) {
        Scanner lines = new Scanner(System.in, StandardCharsets.US_ASCII);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ", -1);
            System.out.println(HexFormat.of().formatHex(answer(words).getBytes(StandardCharsets.UTF_8)));
        }
    }

    private static String answer(String[] words) {
        try {
            if (words[0].equals("name")) return "=" + new X500Principal(HexFormat.of().parseHex(words[1])).getName();
            return "=" + SslPrincipalMapper.fromRules(text(words[1])).getName(text(words[2]));
        } catch (SslPrincipalMapper.NoMatchingRule error) {
            return "no rule";
        } catch (Exception error) {
            return "refused";
        }
    }

    private static String text(String hexadecimal) {
        return new String(HexFormat.of().parseHex(hexadecimal), StandardCharsets.UTF_8);
    }
}
