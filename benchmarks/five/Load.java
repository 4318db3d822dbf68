import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Loads an endpoint of RocketMQ 5 with Apache's client. Arguments: endpoint, messages of a series.
 * Each of the phases send, receive and latency has a warm series before; a line of JSON begins and ends the measured one.
 */
public class Load {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int IN_FLIGHT = 64;
    private static final int CONSUMERS = 8;
    private static final int BATCH = 32;
    private static final int RATE = 500;
    private static ClientConfiguration configuration;

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[1]);
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics("Load", "Latency").build()) {
            send(producer, count);
            began("send");
            ended("send", count, send(producer, count));
            receive(count);
            latency(producer);
        }
        System.exit(0);
    }

    private static void began(String phase) {
        System.out.println("{\"phase\": \"" + phase + "\"}");
    }

    /** Tells a phase: messages, and times of single answers in microseconds. */
    private static void ended(String phase, int count, long[] microseconds) {
        Arrays.sort(microseconds);
        System.out.println("{\"phase\": \"" + phase + "\", \"messages\": " + count + ", \"p50_us\": "
            + microseconds[microseconds.length / 2] + ", \"p99_us\": " + microseconds[microseconds.length * 99 / 100] + "}");
    }

    private static Message message(String topic) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(new byte[128]).build();
    }

    private static long[] send(Producer producer, int count) throws Exception {
        Semaphore free = new Semaphore(IN_FLIGHT);
        AtomicInteger failed = new AtomicInteger();
        long[] took = new long[count];
        for (int number = 0; number < count; number++) {
            free.acquire();
            int at = number;
            long began = System.nanoTime();
            producer.sendAsync(message("Load")).whenComplete((receipt, problem) -> {
                took[at] = (System.nanoTime() - began) / 1000;
                if (problem != null) {
                    failed.incrementAndGet();
                }
                free.release();
            });
        }
        free.acquire(IN_FLIGHT);
        if (failed.get() > 0) {
            throw new IllegalStateException(failed + " sends failed");
        }
        return took;
    }

    /** Receives what both series of sends stored; the second half is measured. */
    private static void receive(int count) throws Exception {
        AtomicInteger left = new AtomicInteger(2 * count);
        AtomicInteger measured = new AtomicInteger();
        List<Long> took = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < CONSUMERS; number++) {
            Thread thread = new Thread(() -> {
                try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                        .setConsumerGroup("Receivers").setAwaitDuration(Duration.ofSeconds(5))
                        .setSubscriptionExpressions(Collections.singletonMap("Load", FilterExpression.SUB_ALL)).build()) {
                    while (left.get() > 0) {
                        long began = System.nanoTime();
                        List<MessageView> messages = consumer.receive(BATCH, Duration.ofSeconds(60));
                        List<CompletableFuture<Void>> acks = new ArrayList<>();
                        for (MessageView message : messages) {
                            acks.add(consumer.ackAsync(message));
                        }
                        for (CompletableFuture<Void> ack : acks) {
                            ack.join();
                        }
                        int before = left.getAndAdd(-messages.size());
                        if (before > count && before - messages.size() <= count) {
                            began("receive");
                        } else if (before <= count && before > 0) {
                            measured.addAndGet(messages.size());
                            took.add((System.nanoTime() - began) / 1000);
                            if (before - messages.size() <= 0) {
                                ended("receive", measured.get(), took.stream().mapToLong(Long::longValue).toArray());
                            }
                        }
                    }
                } catch (Exception problem) {
                    problem.printStackTrace();
                    System.exit(1);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** The time from send to listener at 500 messages a second. */
    private static void latency(Producer producer) throws Exception {
        int warm = RATE * 3;
        int count = RATE * 8;
        long[] took = new long[count];
        AtomicInteger seen = new AtomicInteger();
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup("Listeners")
                .setSubscriptionExpressions(Collections.singletonMap("Latency", FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    long now = System.nanoTime();
                    int at = Integer.parseInt(message.getProperties().get("number"));
                    took[at] = (now - Long.parseLong(message.getProperties().get("sent"))) / 1000;
                    seen.incrementAndGet();
                    return ConsumeResult.SUCCESS;
                }).build()) {
            Thread.sleep(3_000);
            long start = System.nanoTime();
            for (int number = 0; number < count; number++) {
                long due = start + number * (1_000_000_000L / RATE);
                while (System.nanoTime() < due) {
                    Thread.sleep(0, 200_000);
                }
                if (number == warm) {
                    began("latency");
                }
                producer.sendAsync(PROVIDER.newMessageBuilder().setTopic("Latency").setBody(new byte[128])
                    .addProperty("number", String.valueOf(number)).addProperty("sent", String.valueOf(System.nanoTime()))
                    .build());
            }
            long until = System.currentTimeMillis() + 20_000;
            while (seen.get() < count && System.currentTimeMillis() < until) {
                Thread.sleep(20);
            }
            if (seen.get() < count) {
                throw new IllegalStateException("only " + seen + " of " + count + " messages came");
            }
            ended("latency", count - warm, Arrays.copyOfRange(took, warm, count));
        }
    }
}
