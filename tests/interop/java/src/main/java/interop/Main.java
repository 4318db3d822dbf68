package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;

/**
 * One command from the command line, or with {@code serve} any number of commands from standard input:
 * a line {@code {"id": 1, "args": ["produce", "--topic", "T"]}} starts one in its own thread, and
 * {@code {"id": 1, "stop": true}} asks it to finish. A JVM start costs a second; a command in a running JVM does not.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws IOException {
        boolean ok = true;
        if (args.length == 1 && args[0].equals("serve")) {
            serve();
        } else {
            ok = run(new Output(null), new StopSignal(), args);
        }
        Runtime.getRuntime().halt(ok ? 0 : 1);
    }

    private static void serve() throws IOException {
        Map<Object, StopSignal> running = new ConcurrentHashMap<>();
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject command = JSON.parseObject(line);
            Integer id = command.getInteger("id");
            if (command.getBooleanValue("stop")) {
                StopSignal signal = running.get(id);
                if (signal != null) {
                    signal.raise();
                }
                continue;
            }
            List<String> args = command.getJSONArray("args").toJavaList(String.class);
            StopSignal signal = new StopSignal();
            running.put(id, signal);
            new Thread(() -> {
                run(new Output(id), signal, args.toArray(new String[0]));
                running.remove(id);
            }, "command-" + id).start();
        }
    }

    /** TLS for the clients that are made next, with servers of this authority only; null for plain text. */
    private static void speakTls(String trustCertPath) {
        TlsSystemConfig.tlsEnable = trustCertPath != null;
        TlsSystemConfig.tlsTestModeEnable = trustCertPath == null;
        TlsSystemConfig.tlsClientAuthServer = trustCertPath != null;
        TlsSystemConfig.tlsClientTrustCertPath = trustCertPath;
    }

    private static boolean run(Output output, StopSignal stop, String[] args) {
        try {
            Options options = new Options(args);
            speakTls(options.text("tls", null));
            Map<String, Object> summary = switch (options.command()) {
                case "produce" -> Produce.run(options, output, stop);
                case "recall" -> Produce.recall(options);
                case "consume" -> Consume.run(options, output, stop);
                case "transact" -> Transact.run(options, output, stop);
                case "admin" -> Admin.run(options, output);
                case "mqadmin" -> MqAdmin.run(options, output);
                default -> throw new IllegalArgumentException("no such command: " + options.command());
            };
            output.print("done", summary);
            return true;
        } catch (Throwable problem) {
            output.problem(problem);
            return false;
        }
    }
}
