package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends a numbered series of messages by one of the client's kinds of send. */
final class Produce {
    private static final int BATCH_MESSAGES = 10;

    private Produce() {
    }

    static Map<String, Object> run(Options options, Output output, StopSignal stop) throws Exception {
        int count = (int) options.number("count", 1);
        int first = (int) options.number("first", 0);
        DefaultMQProducer producer = producer(options);
        producer.start();
        try {
            List<Message> messages = new ArrayList<>();
            for (int index = first; index < first + count; index++) {
                messages.add(message(options, index));
            }
            switch (options.text("mode", "sync")) {
                case "sync" -> {
                    for (int at = 0; at < count; at++) {
                        sent(output, first + at, 1, producer.send(messages.get(at)));
                    }
                }
                case "async" -> async(producer, messages, first, output);
                case "oneway" -> {
                    for (Message message : messages) {
                        producer.sendOneway(message);
                    }
                    // Nothing answers a oneway send: a question on the same connection, asked after it, is answered.
                    for (MessageQueue queue : producer.fetchPublishMessageQueues(options.text("topic"))) {
                        producer.maxOffset(queue);
                    }
                }
                case "batch" -> {
                    for (int at = 0; at < count; at += BATCH_MESSAGES) {
                        int end = Math.min(at + BATCH_MESSAGES, count);
                        sent(output, first + at, end - at, producer.send(messages.subList(at, end)));
                    }
                }
                case "request" -> {
                    for (int at = 0; at < count; at++) {
                        Message reply = producer.request(messages.get(at), options.number("request-timeout-ms", 60000));
                        String body = new String(reply.getBody(), StandardCharsets.UTF_8);
                        output.print("reply", Map.of("index", first + at, "body", body));
                    }
                }
                case "selector" -> {
                    for (int at = 0; at < count; at++) {
                        SendResult result = producer.send(messages.get(at),
                            (queues, message, number) -> queues.get((int) number % queues.size()), first + at);
                        sent(output, first + at, 1, result);
                    }
                }
                default -> throw new IllegalArgumentException("unknown mode " + options.text("mode"));
            }
            if (options.number("trace", 0) == 1) {
                // A shutdown waits half a second for the traces at most: one who wants them all says when they are there.
                stop.waitMillis(TimeUnit.SECONDS.toMillis(options.number("timeout", 60)));
            }
        } finally {
            producer.shutdown();
        }
        return Map.of("count", count);
    }

    private static DefaultMQProducer producer(Options options) {
        // The 5.x client reads its compression from this property when the producer is made; 4.9 knows zlib only.
        System.setProperty("rocketmq.message.compressType", options.text("compression", "ZLIB"));
        DefaultMQProducer producer = new DefaultMQProducer(
            options.text("group", "interop-producer"), options.hook(), options.number("trace", 0) == 1, null);
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setInstanceName(UUID.randomUUID().toString());
        producer.setCompressMsgBodyOverHowmuch((int) options.number("compress-over", 4096));
        producer.setSendMsgTimeout((int) options.number("send-timeout-ms", 20000));
        producer.setMqClientApiTimeout(Options.PATIENCE_MS);
        producer.setVipChannelEnabled(options.number("vip", 0) == 1);
        return producer;
    }

    static Message message(Options options, int index) {
        Message message = new Message(options.text("topic"), body(options, index));
        String[] tags = options.text("tags", "").split(",");
        if (!tags[0].isEmpty()) {
            message.setTags(tags[index % tags.length]);
        }
        String keys = options.text("keys", "").replace("{i}", Integer.toString(index));
        if (!keys.isEmpty()) {
            message.setKeys(keys);
        }
        options.properties().forEach((name, value) -> {
            if (name.startsWith("TIMER_")) {
                // What setDelayTimeMs and setDeliverTimeMs of 5.x do.
                MessageAccessor.putProperty(message, name, value);
            } else {
                message.putUserProperty(name, value);
            }
        });
        if (options.number("delay-level", 0) > 0) {
            message.setDelayTimeLevel((int) options.number("delay-level", 0));
        }
        return message;
    }

    /** Takes a message back by the handle of its send: {@code recallMessage} of the 5.3 client. */
    static Map<String, Object> recall(Options options) throws Exception {
        DefaultMQProducer producer = producer(options);
        producer.start();
        try {
            Object id = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer, options.text("topic"), options.text("handle"));
            return Map.of("msgId", id);
        } finally {
            producer.shutdown();
        }
    }

    private static Object recallHandle(SendResult result) {
        try {
            return SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (ReflectiveOperationException older) {
            return null;
        }
    }

    /** {@code prefix-index|} repeated to the wanted number of bytes, or once without a bar when no size is given. */
    private static byte[] body(Options options, int index) {
        String unit = options.text("body", "body") + "-" + index;
        int size = (int) options.number("body-size", 0);
        if (size == 0) {
            return unit.getBytes(StandardCharsets.UTF_8);
        }
        byte[] pattern = (unit + "|").getBytes(StandardCharsets.UTF_8);
        byte[] body = new byte[size];
        for (int at = 0; at < size; at++) {
            body[at] = pattern[at % pattern.length];
        }
        return body;
    }

    private static void async(DefaultMQProducer producer, List<Message> messages, int first, Output output)
        throws Exception {
        List<CompletableFuture<SendResult>> answers = new ArrayList<>();
        for (Message message : messages) {
            CompletableFuture<SendResult> answer = new CompletableFuture<>();
            answers.add(answer);
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    answer.complete(result);
                }

                @Override
                public void onException(Throwable problem) {
                    answer.completeExceptionally(problem);
                }
            });
        }
        for (int at = 0; at < answers.size(); at++) {
            sent(output, first + at, 1, answers.get(at).get(20, TimeUnit.SECONDS));
        }
    }

    private static void sent(Output output, int index, int count, SendResult result) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("index", index);
        fields.put("count", count);
        fields.put("status", result.getSendStatus().name());
        fields.put("msgId", result.getMsgId());
        fields.put("offsetMsgId", result.getOffsetMsgId());
        fields.put("queueId", result.getMessageQueue().getQueueId());
        fields.put("brokerName", result.getMessageQueue().getBrokerName());
        fields.put("queueOffset", result.getQueueOffset());
        fields.put("recallHandle", recallHandle(result));
        output.print("sent", fields);
    }
}
