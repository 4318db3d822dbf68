import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends a message each 10 ms with the producer's defaults, one after the other. Arguments: nameserver, topic.
 * A line for each acknowledged send has the times of its begin and its end, in milliseconds since 1970.
 */
public class Send {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-probe");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        while (true) {
            long begun = System.currentTimeMillis();
            try {
                if (producer.send(new Message(arguments[1], new byte[128])).getSendStatus() == SendStatus.SEND_OK) {
                    System.out.println(begun + " " + System.currentTimeMillis());
                }
            } catch (Exception failed) {
                // The next send tries again.
            }
            Thread.sleep(10);
        }
    }
}
