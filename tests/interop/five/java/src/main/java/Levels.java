import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Sends messages of several priorities, and receives them four at a time; prints a line of JSON with what came. Arguments:
 * endpoint, run. Priorities are used by reflection, since 5.0 does not know them.
 */
public class Levels {
    private static final int[] PRIORITIES = {1, 3, 0, 2, 9, 3, 0, 1};
    private static final long PATIENCE_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        String topic = "P" + arguments[1];
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .enableSsl(false).setRequestTimeout(Duration.ofSeconds(10)).build();
        try (Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
                .build()) {
            for (int number = 0; number < PRIORITIES.length; number++) {
                String body = PRIORITIES[number] + "." + number;
                MessageBuilder builder = provider.newMessageBuilder().setTopic(topic)
                    .setBody(body.getBytes(StandardCharsets.UTF_8));
                MessageBuilder.class.getMethod("setPriority", int.class).invoke(builder, PRIORITIES[number]);
                producer.send(builder.build());
            }
        }
        List<String> got = new ArrayList<>();
        long until = System.currentTimeMillis() + PATIENCE_MS;
        try (SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup("GL" + arguments[1]).setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build()) {
            while (got.size() < PRIORITIES.length && System.currentTimeMillis() < until) {
                for (MessageView message : consumer.receive(4, Duration.ofSeconds(15))) {
                    Optional<?> priority = (Optional<?>) MessageView.class.getMethod("getPriority").invoke(message);
                    got.add(StandardCharsets.UTF_8.decode(message.getBody()) + " " + priority.get());
                    consumer.ack(message);
                }
            }
        }
        String list = got.stream().map(one -> "\"" + one + "\"").collect(Collectors.joining(", "));
        System.out.println("{\"scenario\": \"levels\", \"got\": [" + list + "]}");
        System.exit(0);
    }
}
