package interop;

import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Receives messages by one of the client's three consumers until enough came, time is up, or it is asked to stop. */
final class Consume {
    private static final int PULL_MESSAGES = 32;

    /** From the last awaited message to the shutdown: the client counts a message as consumed after its listener returned. */
    private static final int LINGER_MILLIS = 150;

    private Consume() {
    }

    static Map<String, Object> run(Options options, Output output, StopSignal stop) throws Exception {
        return switch (options.text("mode", "push")) {
            case "push", "orderly", "pop" -> push(options, output, stop);
            case "litepull" -> litePull(options, output, stop);
            case "pull" -> pull(options, output);
            default -> throw new IllegalArgumentException("unknown mode " + options.text("mode"));
        };
    }

    private static Map<String, Object> push(Options options, Output output, StopSignal stop) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.text("group"), options.hook(), new AllocateMessageQueueAveragely(), options.number("trace", 0) == 1, null);
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(Options.PATIENCE_MS);
        consumer.setInstanceName(options.text("instance", UUID.randomUUID().toString()));
        consumer.setConsumeFromWhere(from(options));
        if (options.text("timestamp", null) != null) {
            consumer.setConsumeTimestamp(options.text("timestamp"));
        }
        // The enum moved to another package between 4.x and 5.x; asking for its class serves both.
        var model = consumer.getMessageModel();
        consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), options.text("model", "clustering").toUpperCase()));
        consumer.setConsumeMessageBatchMaxSize(options.number("fail", 0) > 0 ? 1 : PULL_MESSAGES);
        consumer.setMaxReconsumeTimes((int) options.number("max-reconsume-times", -1));
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        if (options.text("mode", "push").equals("pop")) {
            // Only clients of 5.x let the broker assign their queues, and pop where it says so.
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.subscribe(options.text("topic"), wanted(options));
        AtomicInteger received = new AtomicInteger();
        Replier replier = options.number("reply", 0) == 1 ? new Replier(options.text("namesrv")) : null;
        if (options.text("mode", "push").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(output::message);
                received.addAndGet(messages.size());
                pause(options.number("sleep-ms", 0));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(output::message);
                if (replier != null) {
                    messages.forEach(replier::reply);
                }
                received.addAndGet(messages.size());
                return messages.get(0).getReconsumeTimes() < options.number("fail", 0)
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        // Without this the offset of a message whose listener has just returned may not be reported at the end.
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        consumer.start();
        output.print("started", Map.of("clientId", consumer.buildMQClientId()));
        Set<String> assigned = new TreeSet<>();
        BooleanSupplier enough = enough(options, received);
        long deadline = deadline(options);
        while (!enough.getAsBoolean() && System.currentTimeMillis() < deadline && !stop.waitMillis(20)) {
            Set<String> now = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()
                .stream().filter(queue -> queue.getTopic().equals(options.text("topic"))).map(Consume::name)
                .collect(Collectors.toCollection(TreeSet::new));
            if (!now.equals(assigned)) {
                assigned = now;
                output.print("assigned", Map.of("queues", now));
            }
        }
        stop.waitMillis(options.number("linger-ms", LINGER_MILLIS));
        consumer.shutdown();
        if (replier != null) {
            replier.close();
        }
        return Map.of("count", received.get());
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static Map<String, Object> litePull(Options options, Output output, StopSignal stop) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group"), options.hook());
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(Options.PATIENCE_MS);
        consumer.setInstanceName(options.text("instance", UUID.randomUUID().toString()));
        consumer.setConsumeFromWhere(from(options));
        boolean assigns = options.number("assign", 0) == 1;
        if (!assigns) {
            consumer.subscribe(options.text("topic"), wanted(options));
        }
        consumer.start();
        if (assigns) {
            consumer.assign(consumer.fetchMessageQueues(options.text("topic")));
        }
        output.print("started", Map.of("clientId", consumer.buildMQClientId()));
        AtomicInteger received = new AtomicInteger();
        BooleanSupplier enough = enough(options, received);
        long deadline = deadline(options);
        while (!enough.getAsBoolean() && System.currentTimeMillis() < deadline && !stop.waitMillis(0)) {
            List<MessageExt> messages = consumer.poll(100);
            messages.forEach(output::message);
            received.addAndGet(messages.size());
        }
        consumer.commitSync();
        consumer.shutdown();
        return Map.of("count", received.get());
    }

    /** Reads every queue of the topic from its first to its last message, without a group's offsets. */
    private static Map<String, Object> pull(Options options, Output output) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(Options.PATIENCE_MS);
        consumer.setInstanceName(UUID.randomUUID().toString());
        consumer.start();
        int count = 0;
        try {
            List<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(options.text("topic")).stream()
                .sorted(Comparator.comparing(MessageQueue::getBrokerName).thenComparing(MessageQueue::getQueueId))
                .collect(Collectors.toList());
            for (MessageQueue queue : queues) {
                long next = consumer.minOffset(queue);
                long end = consumer.maxOffset(queue);
                output.print("queue", Map.of("queue", name(queue), "minOffset", next, "maxOffset", end));
                while (next < end) {
                    PullResult result = consumer.pull(queue, options.text("tag", "*"), next, PULL_MESSAGES);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        result.getMsgFoundList().forEach(output::message);
                        count += result.getMsgFoundList().size();
                    } else if (result.getNextBeginOffset() <= next) {
                        throw new IllegalStateException(name(queue) + " at " + next + ": " + result);
                    }
                    next = result.getNextBeginOffset();
                }
            }
        } finally {
            consumer.shutdown();
        }
        return Map.of("count", count);
    }

    private static MessageSelector wanted(Options options) {
        String expression = options.text("sql", null);
        return expression == null ? MessageSelector.byTag(options.text("tag", "*")) : MessageSelector.bySql(expression);
    }

    private static BooleanSupplier enough(Options options, AtomicInteger received) {
        long expected = options.number("expect", Long.MAX_VALUE);
        return () -> received.get() >= expected;
    }

    private static long deadline(Options options) {
        return System.currentTimeMillis() + 1000 * options.number("timeout", 60);
    }

    private static ConsumeFromWhere from(Options options) {
        return switch (options.text("from", "first")) {
            case "first" -> ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET;
            case "last" -> ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET;
            case "timestamp" -> ConsumeFromWhere.CONSUME_FROM_TIMESTAMP;
            default -> throw new IllegalArgumentException("unknown from " + options.text("from"));
        };
    }

    private static String name(MessageQueue queue) {
        return queue.getBrokerName() + ":" + queue.getQueueId();
    }
}
