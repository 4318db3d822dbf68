package interop;

import java.nio.charset.StandardCharsets;
import java.util.UUID;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Replies to requests with {@code re: } and their bodies. */
final class Replier {
    private final DefaultMQProducer producer = new DefaultMQProducer("interop-replier");

    Replier(String namesrv) throws Exception {
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(UUID.randomUUID().toString());
        producer.setMqClientApiTimeout(Options.PATIENCE_MS);
        producer.start();
    }

    void reply(MessageExt request) {
        byte[] body = ("re: " + new String(request.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
        try {
            Message reply = MessageUtil.createReplyMessage(request, body);
            producer.send(reply, 5000);
        } catch (Exception problem) {
            throw new IllegalStateException(problem);
        }
    }

    void close() {
        producer.shutdown();
    }
}
