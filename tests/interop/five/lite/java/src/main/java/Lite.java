import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Runs the scenarios of lite topics side by side, since each consumer takes 20 seconds to close; prints a line of JSON
 * for each. Arguments: endpoint, run.
 */
public class Lite {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final long PATIENCE_MS = 120_000;
    private static ClientConfiguration configuration;
    private static String run;
    private static Producer producer;

    /** What one consumer got: lite topic, body and attempt of each message. */
    private static final class Got implements MessageListener {
        final List<String> all = Collections.synchronizedList(new ArrayList<>());

        @Override
        public ConsumeResult consume(MessageView message) {
            String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
            all.add(message.getLiteTopic().orElse("none") + ":" + body + ":" + message.getDeliveryAttempt());
            boolean fails = body.equals("always") || body.equals("once") && message.getDeliveryAttempt() == 1;
            return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        }
    }

    private static LitePushConsumer consumer(String group, MessageListener listener) throws ClientException {
        return PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group + run).bindTopic("L" + run).setMessageListener(listener).build();
    }

    private static void send(String lite, String... bodies) throws ClientException {
        for (String body : bodies) {
            producer.send(PROVIDER.newMessageBuilder().setTopic("L" + run).setLiteTopic(lite)
                .setBody(body.getBytes(StandardCharsets.UTF_8)).build());
        }
    }

    private static void await(BooleanSupplier condition) throws InterruptedException {
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.getAsBoolean() && System.currentTimeMillis() < until) {
            Thread.sleep(50);
        }
    }

    private static void tell(String scenario, List<String> got, boolean sorted) {
        synchronized (got) {
            String list = (sorted ? got.stream().sorted() : got.stream()).map(one -> "\"" + one + "\"")
                .collect(Collectors.joining(", "));
            System.out.println("{\"scenario\": \"" + scenario + "\", \"got\": [" + list + "]}");
        }
    }

    private interface Step {
        void run() throws Exception;
    }

    /** The name of the exception of a step, without the words, which are the servers' own. */
    private static String outcome(Step step) {
        try {
            step.run();
            return "done";
        } catch (Exception problem) {
            String code = problem instanceof ClientException
                ? problem.getMessage().replaceAll("(?s).*response-code=(\\d+).*", ":$1") : "";
            return problem.getClass().getSimpleName() + (code.startsWith(":") && code.length() < 8 ? code : "");
        }
    }

    /** Messages of two lite topics: each in its order, nothing of a third. A listener that fails is called again. */
    private static void order() throws Exception {
        Got got = new Got();
        try (LitePushConsumer consumer = consumer("GF", got)) {
            consumer.subscribeLite("a");
            consumer.subscribeLite("session-1");
            for (int number = 0; number < 5; number++) {
                send("a", number == 2 ? "once" : "a" + number);
                send("session-1", "s" + number);
                send("other", "o" + number);
            }
            await(() -> got.all.size() >= 11);
            for (String lite : List.of("a", "session-1", "other")) {
                tell("order of " + lite, got.all.stream().filter(one -> one.startsWith(lite + ":")).toList(), false);
            }
            consumer.unsubscribeLite("a");
            send("a", "unseen");
            send("session-1", "last");
            await(() -> got.all.size() >= 12);
            tell("unsubscribed", got.all.subList(11, got.all.size()), true);
            tell("set", List.copyOf(consumer.getLiteTopicSet()), true);
        }
    }

    /** A message that fails each time is tried up to the group's attempts and becomes a dead letter; the next follows. */
    private static void dead() throws Exception {
        Got got = new Got();
        try (LitePushConsumer consumer = consumer("GF", got)) {
            consumer.subscribeLite("dead");
            send("dead", "always", "next");
            await(() -> got.all.stream().anyMatch(one -> one.contains("next")));
            tell("dead", got.all.stream().limit(4).toList(), false);
        }
    }

    /** Where a new consumer begins. */
    private static void offsets() throws Exception {
        send("old", "o0", "o1", "o2", "o3");
        Got first = new Got();
        try (LitePushConsumer consumer = consumer("GF", first)) {
            consumer.subscribeLite("old");
            await(() -> first.all.size() >= 4);
            tell("new group", first.all, false);
            await(() -> false, 1_500);
        }
        Got again = new Got();
        try (LitePushConsumer consumer = consumer("GF", again)) {
            consumer.subscribeLite("old", OffsetOption.ofTailN(2));
            await(() -> again.all.size() >= 2);
            tell("last two", again.all, false);
            await(() -> false, 1_500);
        }
        Got all = new Got();
        try (LitePushConsumer consumer = consumer("GF", all)) {
            consumer.subscribeLite("old", OffsetOption.MIN_OFFSET);
            await(() -> all.all.size() >= 4);
            tell("first offset", all.all, false);
            await(() -> false, 1_500);
        }
        Got none = new Got();
        try (LitePushConsumer consumer = consumer("GF", none)) {
            consumer.subscribeLite("old", OffsetOption.ofOffset(3));
            await(() -> none.all.size() >= 1);
            tell("offset 3", none.all, false);
        }
    }

    private static void await(BooleanSupplier condition, long mostMs) throws InterruptedException {
        long until = System.currentTimeMillis() + mostMs;
        while (!condition.getAsBoolean() && System.currentTimeMillis() < until) {
            Thread.sleep(50);
        }
    }

    /** In an exclusive group the last subscriber has the lite topic; the first is told. */
    private static void exclusive() throws Exception {
        Got first = new Got();
        Got second = new Got();
        try (LitePushConsumer one = consumer("GE", first); LitePushConsumer two = consumer("GE", second)) {
            one.subscribeLite("mine");
            send("mine", "m0");
            await(() -> first.all.size() >= 1);
            two.subscribeLite("mine");
            await(() -> one.getLiteTopicSet().isEmpty());
            send("mine", "m1");
            await(() -> second.all.size() >= 1);
            tell("exclusive first", first.all, false);
            tell("exclusive second", second.all.stream().map(body -> body.replaceAll(":\\d$", "")).distinct().toList(),
                false);
            tell("exclusive sets", List.of(one.getLiteTopicSet().toString(), two.getLiteTopicSet().toString()), false);
        }
    }

    private static void refusals() throws Exception {
        List<String> found = new ArrayList<>();
        try (LitePushConsumer consumer = consumer("GQ", new Got())) {
            found.add("slash " + outcome(() -> consumer.subscribeLite("a/b")));
            found.add("long " + outcome(() -> consumer.subscribeLite("x".repeat(65))));
            for (String name : List.of("q0", "q1", "q2")) {
                found.add(name + " " + outcome(() -> consumer.subscribeLite(name)));
            }
            found.add("again " + outcome(() -> consumer.subscribeLite("q1")));
        }
        found.add("send slash " + outcome(() -> send("a/b", "body")));
        found.add("send long " + outcome(() -> send("x".repeat(65), "body")));
        found.add("send normal " + outcome(() -> producer.send(PROVIDER.newMessageBuilder().setTopic("L" + run)
            .setBody(new byte[1]).build())));
        found.add("send to normal " + outcome(() -> producer.send(PROVIDER.newMessageBuilder().setTopic("N" + run)
            .setLiteTopic("a").setBody(new byte[1]).build())));
        found.add("group of no topic " + outcome(() -> consumer("GN", new Got()).close()));
        tell("refusals", found, false);
    }

    public static void main(String[] arguments) throws Exception {
        run = arguments[1];
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("L" + run, "N" + run).build();
        List<Step> scenarios = List.of(Lite::order, Lite::dead, Lite::offsets, Lite::exclusive, Lite::refusals);
        ExecutorService threads = Executors.newFixedThreadPool(scenarios.size());
        List<Callable<Void>> calls = scenarios.stream().<Callable<Void>>map(step -> () -> {
            step.run();
            return null;
        }).toList();
        try {
            for (Future<Void> done : threads.invokeAll(calls)) {
                done.get();
            }
        } catch (ExecutionException failure) {
            failure.printStackTrace();
            System.exit(1); // the client's threads would keep the process
        }
        System.exit(0);
    }
}
