package interop;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;
import com.alibaba.fastjson.JSON;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** {@code command word… --name value…}: the little command line that all client programs share. */
final class Options {
    /** What a client gives a request: a first handshake takes a JVM on a busy machine seconds. */
    static final int PATIENCE_MS = 20_000;

    private final List<String> words = new ArrayList<>();
    private final Map<String, String> values = new LinkedHashMap<>();

    Options(String[] args) {
        for (int at = 0; at < args.length; at++) {
            if (args[at].equals("--")) {
                words.addAll(List.of(args).subList(at + 1, args.length));
                break;
            } else if (args[at].startsWith("--")) {
                values.put(args[at].substring(2), args[++at]);
            } else {
                words.add(args[at]);
            }
        }
    }

    String command() {
        return words.get(0);
    }

    List<String> words() {
        return words.subList(1, words.size());
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    long number(String name, long otherwise) {
        String value = values.get(name);
        return value == null ? otherwise : Long.parseLong(value);
    }

    /** Signs requests if an account is given. */
    RPCHook hook() {
        String accessKey = values.get("access-key");
        return accessKey == null ? null : new AclClientRPCHook(new SessionCredentials(accessKey, text("secret-key")));
    }

    Map<String, String> properties() {
        Map<String, String> properties = new LinkedHashMap<>();
        JSON.parseObject(text("properties", "{}")).forEach((name, value) -> properties.put(name, value.toString()));
        return properties;
    }
}
