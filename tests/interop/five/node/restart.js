'use strict';
// Sends and consumes with Apache's Node client until its input ends; prints a line of JSON for each message.
// The client itself must find a server that was killed and started again. The producer has two topics: this client looks
// them up one after the other, and waits for ever when its settings come before the second.

const { ConsumeResult, Producer, PushConsumer } = require('rocketmq-client-nodejs');

const [endpoints, topic] = process.argv.slice(2);

function tell(event, body) {
  process.stdout.write(JSON.stringify({ event, body }) + '\n');
}

async function main() {
  const consume = async (received) => {
    tell('got', received.body.toString());
    return ConsumeResult.SUCCESS;
  };
  const consumer = new PushConsumer({ endpoints, consumerGroup: `G${topic}`, messageListener: { consume },
    subscriptions: new Map([[topic, '*']]) });
  await consumer.startup();
  const producer = new Producer({ endpoints, topics: [topic, `${topic}Too`] });
  await producer.startup();
  for (let number = 0; ; number++) {
    const body = String(number);
    try {
      await producer.send({ topic, body: Buffer.from(body) });
      tell('sent', body);
    } catch (error) {
      console.error(`${number}: ${error}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

process.stdin.resume().on('end', () => process.exit(0));
main();
