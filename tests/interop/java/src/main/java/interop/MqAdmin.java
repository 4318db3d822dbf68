package interop;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's own {@code mqadmin}: what a command prints comes back as one {@code output} event. */
final class MqAdmin {
    private MqAdmin() {
    }

    static synchronized Map<String, Object> run(Options options, Output output) throws IOException {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        // mqadmin takes its account from nowhere else.
        Path tools = Path.of(System.getProperty("rocketmq.home.dir"), "conf", "tools.yml");
        String accessKey = options.text("access-key", null);
        if (accessKey != null) {
            Files.writeString(tools, "accessKey: " + accessKey + "\nsecretKey: " + options.text("secret-key") + "\n");
        }
        try {
            System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            MQAdminStartup.main0(options.words().toArray(new String[0]), null);
        } finally {
            System.setOut(out);
            System.setErr(err);
            Files.deleteIfExists(tools);
        }
        output.print("output", Map.of("text", printed.toString(StandardCharsets.UTF_8), "errors",
            errors.toString(StandardCharsets.UTF_8)));
        return Map.of("command", options.words().get(0));
    }
}
