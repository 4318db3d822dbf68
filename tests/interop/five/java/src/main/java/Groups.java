import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumerBuilder;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Sends and consumes messages of several message groups; the first letter of a body is its group. Arguments: endpoint, run.
 * The client is one that consumes the message groups of a receive beside each other, which 5.0 does not know.
 * Lines of the input are commands: "send BODY ...", "fail BODY" (from now on), "fail" (none).
 * Prints a line of JSON each time that a message is consumed.
 */
public class Groups {
    private static synchronized void tell(String event, String body) {
        System.out.println("{\"event\": \"" + event + "\", \"body\": \"" + body + "\"}");
    }

    /** Sends until it works: the server may just have been started again. */
    private static void send(Producer producer, Message message) throws InterruptedException {
        while (true) {
            try {
                producer.send(message);
                return;
            } catch (Exception problem) {
                Thread.sleep(100);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String topic = "F" + arguments[1];
        AtomicReference<String> failing = new AtomicReference<>("");
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
        PushConsumerBuilder builder = provider.newPushConsumerBuilder();
        PushConsumerBuilder.class.getMethod("setEnableFifoConsumeAccelerator", boolean.class).invoke(builder, true);
        builder.setClientConfiguration(configuration).setConsumerGroup("GF" + arguments[1])
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
                boolean fails = body.equals(failing.get());
                tell(fails ? "failed" : "got", body);
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("fail")) {
                failing.set(words.length > 1 ? words[1] : "");
                continue;
            }
            for (int index = 1; index < words.length; index++) {
                send(producer, provider.newMessageBuilder().setTopic(topic)
                    .setMessageGroup(words[index].substring(0, 1))
                    .setBody(words[index].getBytes(StandardCharsets.UTF_8)).build());
            }
        }
        System.exit(0);
    }
}
