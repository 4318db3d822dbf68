import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Runs the scenarios of clients of RocketMQ 5; prints a line of JSON for each. Arguments: endpoint, run, plain|tls|listen. */
public class Five {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final long PATIENCE_MS = 60_000;
    private static ClientConfiguration configuration;
    private static String run;
    private static int consumers;

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic + run).setBody(body.getBytes(StandardCharsets.UTF_8))
            .setTag("a").setKeys("k1").addProperty("color", "red");
    }

    private static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    private static List<String> take(String topic, String group, int count) throws Exception {
        List<String> found = new ArrayList<>();
        long until = System.currentTimeMillis() + PATIENCE_MS;
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(group + run).setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Collections.singletonMap(topic + run, FilterExpression.SUB_ALL)).build()) {
            while (found.size() < count && System.currentTimeMillis() < until) {
                for (MessageView message : consumer.receive(32, Duration.ofSeconds(15))) {
                    found.add(body(message));
                    consumer.ack(message);
                }
            }
        }
        return found;
    }

    private static void tell(String scenario, List<String> got, boolean sorted) {
        String list = (sorted ? got.stream().sorted() : got.stream()).map(one -> "\"" + one + "\"")
            .collect(Collectors.joining(", "));
        System.out.println("{\"scenario\": \"" + scenario + "\", \"got\": [" + list + "]}");
    }

    public static void main(String[] arguments) throws Exception {
        run = arguments[1];
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .enableSsl(arguments[2].equals("tls")).setRequestTimeout(Duration.ofSeconds(10)).build();
        if (arguments[2].equals("listen")) {
            listen();
        }
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics("N" + run, "F" + run, "D" + run).build()) {
            for (int number = 0; number < 10; number++) {
                producer.send(message("N", "m" + number).build());
            }
            for (int number = 0; number < 6; number++) {
                producer.send(message("F", "f" + number).setMessageGroup("g").build());
            }
            producer.send(message("D", "later").setDeliveryTimestamp(System.currentTimeMillis() + 2_000).build());
        }
        tell("normal", take("N", "GN", 10), true);
        tell("fifo", take("F", "GF", 6), false);
        tell("delay", take("D", "GD", 1), true);
        push();
        transactions();
        System.exit(0);
    }

    /** Three push consumers, two of them of one group, until the input ends; each fails the third time that it consumes. */
    private static void listen() throws Exception {
        for (String group : List.of("GP", "GP", "GN")) {
            int number = consumers++;
            AtomicInteger times = new AtomicInteger();
            PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group + run)
                .setSubscriptionExpressions(Collections.singletonMap("N" + run, FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    System.out.println("{\"event\": \"" + number + "\", \"body\": \"" + body(message) + "\"}");
                    return times.incrementAndGet() == 3 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                }).build();
        }
        System.in.read();
        System.exit(0);
    }

    private static void push() throws Exception {
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch left = new CountDownLatch(11);
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup("GP" + run)
                .setSubscriptionExpressions(Collections.singletonMap("N" + run, FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    seen.add(body(message));
                    left.countDown();
                    boolean fails = body(message).equals("m3") && message.getDeliveryAttempt() == 1;
                    return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                }).build()) {
            left.await(PATIENCE_MS, TimeUnit.MILLISECONDS);
        }
        tell("push", seen, true);
    }

    private static void transactions() throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics("X" + run).setTransactionChecker(message -> TransactionResolution.COMMIT).build()) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message("X", "commit").build(), transaction);
            transaction.commit();
            transaction = producer.beginTransaction();
            producer.send(message("X", "rollback").build(), transaction);
            transaction.rollback();
            transaction = producer.beginTransaction();
            producer.send(message("X", "orphan").build(), transaction);
            tell("transactions", take("X", "GX", 2), true);
        }
    }
}
