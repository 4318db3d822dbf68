package interop;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends a numbered series of messages in transactions, whose local work ends as {@code --states} says in turn, then
 * answers the broker's questions as {@code --answer} says, until it is asked to stop.
 */
final class Transact {
    private Transact() {
    }

    static Map<String, Object> run(Options options, Output output, StopSignal stop) throws Exception {
        int count = (int) options.number("count", 1);
        int first = (int) options.number("first", 0);
        String[] states = options.text("states", "commit").split(",");
        TransactionMQProducer producer = new TransactionMQProducer(options.text("group"));
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setInstanceName(UUID.randomUUID().toString());
        producer.setHeartbeatBrokerInterval(500);
        producer.setSendMsgTimeout(Options.PATIENCE_MS);
        producer.setMqClientApiTimeout(Options.PATIENCE_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return state((String) arg);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                output.print("checked", Output.describe(message));
                return state(options.text("answer", "unknown"));
            }
        });
        producer.start();
        try {
            for (int index = first; index < first + count; index++) {
                String state = states[(index - first) % states.length];
                TransactionSendResult result = producer.sendMessageInTransaction(Produce.message(options, index), state);
                Map<String, Object> fields = new LinkedHashMap<>();
                fields.put("index", index);
                fields.put("state", result.getLocalTransactionState().name());
                fields.put("msgId", result.getMsgId());
                fields.put("queueOffset", result.getQueueOffset());
                output.print("sent", fields);
            }
            output.print("waiting", Map.of("count", count));
            stop.waitMillis(1000 * options.number("timeout", 60));
        } finally {
            producer.shutdown();
        }
        return Map.of("count", count);
    }

    private static LocalTransactionState state(String name) {
        return switch (name) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown" -> LocalTransactionState.UNKNOW;
            case "fail" -> throw new IllegalStateException("told to");
            default -> throw new IllegalArgumentException("no such state: " + name);
        };
    }
}
