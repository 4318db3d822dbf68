package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** Events of one command as JSON lines on the real standard output. */
final class Output {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    private final Integer id;

    Output(Integer id) {
        this.id = id;
    }

    void print(String event, Map<String, Object> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        if (id != null) {
            line.put("id", id);
        }
        line.put("event", event);
        line.putAll(fields);
        String text = JSON.toJSONString(line, SerializerFeature.DisableCircularReferenceDetect);
        synchronized (OUT) {
            OUT.println(text);
        }
    }

    void problem(Throwable problem) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("type", problem.getClass().getSimpleName());
        fields.put("message", String.valueOf(problem.getMessage()));
        fields.put("cause", String.valueOf(problem.getCause()));
        fields.put("trace", java.util.Arrays.stream(problem.getStackTrace()).limit(8).map(Object::toString)
            .collect(Collectors.toList()));
        if (problem instanceof MQBrokerException broker) {
            fields.put("code", broker.getResponseCode());
        } else if (problem instanceof MQClientException client) {
            fields.put("code", client.getResponseCode());
        }
        print("error", fields);
    }

    void message(MessageExt message) {
        print("message", describe(message));
    }

    static Map<String, Object> describe(MessageExt message) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", message.getTopic());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("commitLogOffset", message.getCommitLogOffset());
        fields.put("storeSize", message.getStoreSize());
        fields.put("msgId", message.getMsgId());
        fields.put("offsetMsgId",
            message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId());
        fields.put("keys", message.getKeys());
        fields.put("tags", message.getTags());
        fields.put("properties", new java.util.TreeMap<>(message.getProperties()));
        fields.put("flag", message.getFlag());
        fields.put("sysFlag", message.getSysFlag());
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("bornHost", message.getBornHost().toString());
        fields.put("storeHost", message.getStoreHost().toString());
        fields.put("bodyCrc", message.getBodyCRC());
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        fields.put("bodySize", message.getBody().length);
        fields.put("bodySha256", sha256(message.getBody()));
        return fields;
    }

    static String sha256(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
