import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Answers each line, the base64 of a properties file, with what Apache's servers make of it: a JSON object with the
 * `entries` of Properties, the `fields` that getBrokerConfig shows and the values of the `getters` that the broker
 * asks, or with the `error` at which they do not start. The argument says whose file it is: broker or namesrv.
 */
public class Configure {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                fill(Base64.getDecoder().decode(line), arguments[0], answer);
            } catch (IllegalArgumentException refused) {
                answer.put("error", String.valueOf(refused.getMessage()));
            }
            out.println(JSON.toJSONString(answer));
        }
        out.flush();
    }

    private static void fill(byte[] file, String server, Map<String, Object> answer) throws Exception {
        Properties properties = new Properties();
        properties.load(new ByteArrayInputStream(file));
        Object[] filled = server.equals("broker")
            ? new Object[] {new BrokerConfig(), new NettyServerConfig(), new NettyClientConfig(), new MessageStoreConfig()}
            : new Object[] {new NamesrvConfig(), new NettyServerConfig()};
        Map<String, String> fields = new TreeMap<>();
        Map<String, String> getters = new TreeMap<>();
        for (Object config : filled) {
            MixAll.properties2Object(properties, config);
            MixAll.object2Properties(config).forEach((key, value) -> fields.put((String) key, (String) value));
            for (Method method : config.getClass().getMethods()) {
                String name = method.getName();
                int prefix = name.startsWith("get") ? 3 : name.startsWith("is") ? 2 : 0;
                if (prefix > 0 && method.getParameterCount() == 0 && !name.equals("getClass")) {
                    String key = Character.toLowerCase(name.charAt(prefix)) + name.substring(prefix + 1);
                    getters.put(key, String.valueOf(method.invoke(config)));
                }
            }
        }
        answer.put("entries", properties);
        answer.put("fields", fields);
        answer.put("getters", getters);
    }
}
