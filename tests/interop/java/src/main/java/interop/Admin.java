package interop;

import com.alibaba.fastjson.JSON;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Calls of the administration client; each prints a {@code result} event, or {@code message} events. */
final class Admin {
    private Admin() {
    }

    static Map<String, Object> run(Options options, Output output) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(options.hook(), Options.PATIENCE_MS);
        admin.setMqClientApiTimeout(Options.PATIENCE_MS);
        admin.setNamesrvAddr(options.text("namesrv"));
        admin.setInstanceName(UUID.randomUUID().toString());
        admin.start();
        try {
            Object result = call(admin, options, output);
            if (result != null) {
                output.print("result", Map.of("value", result));
            }
        } finally {
            admin.shutdown();
        }
        return Map.of("call", options.words().get(0));
    }

    private static Object call(DefaultMQAdminExt admin, Options options, Output output) throws Exception {
        return switch (options.words().get(0)) {
            case "create-topic" -> {
                TopicConfig config = new TopicConfig(options.text("topic"));
                config.setReadQueueNums((int) options.number("queues", 4));
                config.setWriteQueueNums((int) options.number("queues", 4));
                admin.createAndUpdateTopicConfig(options.text("broker"), config);
                yield null;
            }
            case "query-key" -> {
                List<MessageExt> found = admin.queryMessage(options.text("topic"), options.text("key"),
                    (int) options.number("max", 64), 0, Long.MAX_VALUE).getMessageList();
                found.forEach(output::message);
                yield null;
            }
            case "view" -> {
                output.message(admin.viewMessage(options.text("topic"), options.text("id")));
                yield null;
            }
            case "resume-check" -> admin.resumeCheckHalfMessage(options.text("topic"), options.text("id"));
            case "offsets" -> offsets(admin, options);
            case "route" -> json(admin.examineTopicRouteInfo(options.text("topic")));
            case "cluster" -> json(admin.examineBrokerClusterInfo());
            case "topics" -> json(admin.fetchAllTopicList());
            case "runtime" -> json(admin.fetchBrokerRuntimeStats(options.text("broker")));
            case "topic-stats" -> {
                Map<String, Object> queues = new LinkedHashMap<>();
                admin.examineTopicStats(options.text("topic")).getOffsetTable().forEach((queue, offset) ->
                    queues.put(name(queue), List.of(offset.getMinOffset(), offset.getMaxOffset())));
                yield queues;
            }
            case "consume-stats" -> {
                Map<String, Object> queues = new LinkedHashMap<>();
                admin.examineConsumeStats(options.text("group")).getOffsetTable().forEach((queue, offset) ->
                    queues.put(queue.getTopic() + ":" + name(queue),
                        List.of(offset.getBrokerOffset(), offset.getConsumerOffset())));
                yield queues;
            }
            case "consumers" -> json(admin.examineConsumerConnectionInfo(options.text("group")));
            default -> throw new IllegalArgumentException("no such call: " + options.words());
        };
    }

    /** For each queue: first, last, and the offset of a time. */
    private static Object offsets(DefaultMQAdminExt admin, Options options) throws Exception {
        List<Object> rows = new ArrayList<>();
        for (MessageQueue queue : admin.examineTopicStats(options.text("topic")).getOffsetTable().keySet()) {
            rows.add(Map.of("queue", name(queue), "minOffset", admin.minOffset(queue), "maxOffset",
                admin.maxOffset(queue), "atTime", admin.searchOffset(queue, options.number("timestamp", 0)),
                "earliestStoreTime", admin.earliestMsgStoreTime(queue)));
        }
        return rows;
    }

    private static Object json(RemotingSerializable body) {
        return JSON.parse(RemotingSerializable.toJson(body, false));
    }

    private static String name(MessageQueue queue) {
        return queue.getBrokerName() + ":" + queue.getQueueId();
    }
}
