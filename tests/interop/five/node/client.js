'use strict';
// Runs the scenarios of clients of RocketMQ 5 with Apache's Node client; prints a line of JSON for each.

const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [endpoints, run] = process.argv.slice(2);
const PATIENCE_MS = 60_000;
const requestTimeout = 20_000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function message(topic, body, fields = {}) {
  return { topic: topic + run, body: Buffer.from(body), tag: 'a', keys: ['k1'],
    properties: new Map([['color', 'red']]), ...fields };
}

async function take(topic, group, count) {
  const consumer = new SimpleConsumer({ endpoints, requestTimeout, consumerGroup: group + run, awaitDuration: 5_000,
    subscriptions: new Map([[topic + run, '*']]) });
  await consumer.startup();
  const found = [];
  const until = Date.now() + PATIENCE_MS;
  while (found.length < count && Date.now() < until) {
    for (const received of await consumer.receive(32, 15_000)) {
      found.push(received.body.toString());
      await consumer.ack(received);
    }
  }
  await consumer.shutdown();
  return found;
}

async function normal() {
  // with one topic: the client looks up several one after the other, and misses settings that come before the last
  const producer = new Producer({ endpoints, requestTimeout, topics: ['N' + run] });
  await producer.startup();
  for (let number = 0; number < 10; number++) await producer.send(message('N', `m${number}`));
  for (let number = 0; number < 6; number++) {
    await producer.send(message('F', `f${number}`, { messageGroup: 'g' }));
  }
  await producer.send(message('D', 'later', { deliveryTimestamp: new Date(Date.now() + 2_000) }));
  await producer.shutdown();
  return (await take('N', 'GN', 10)).sort();
}

async function push() {
  const seen = [];
  const consume = async (received) => {
    const body = received.body.toString();
    seen.push(body);
    return body === 'm3' && received.deliveryAttempt === 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  };
  const consumer = new PushConsumer({ endpoints, requestTimeout, consumerGroup: 'GP' + run, messageListener: { consume },
    subscriptions: new Map([[`N${run}`, '*']]) });
  await consumer.startup();
  const until = Date.now() + PATIENCE_MS;
  while (seen.length < 11 && Date.now() < until) await pause(50);
  consumer.shutdown();  // takes 20 seconds: it waits for its receive that waits for messages
  return seen.sort();
}

async function transactions() {
  const checker = { check: async () => TransactionResolution.COMMIT };
  const producer = new Producer({ endpoints, requestTimeout, topics: [`X${run}`], checker });
  await producer.startup();
  for (const [body, end] of [['commit', 'commit'], ['rollback', 'rollback'], ['orphan', '']]) {
    const transaction = producer.beginTransaction();
    await producer.send(message('X', body), transaction);
    if (end) await transaction[end]();
  }
  const found = (await take('X', 'GX', 2)).sort();
  await producer.shutdown();
  return found;
}

const SCENARIOS = { normal, fifo: () => take('F', 'GF', 6), delay: () => take('D', 'GD', 1), push, transactions };

async function main() {
  for (const [scenario, go] of Object.entries(SCENARIOS)) {
    console.log(JSON.stringify({ scenario, got: await go() }));
  }
}

main().then(() => process.exit(0), (error) => {  // loggers of the client go on for ever
  console.error(error);
  process.exit(1);
});
