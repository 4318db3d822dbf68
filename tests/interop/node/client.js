'use strict';

// Sends and receives messages with the Node client and prints JSON lines.

const crypto = require('crypto');
const { Consumer, Message, Producer } = require('ali-ons');
const ConsumeFromWhere = require('ali-ons/lib/consumer/consume_from_where');

// From the last awaited message to the shutdown: the client counts a message as consumed after its listener returned.
const LINGER_MS = 150;

function emit(event, fields) {
  process.stdout.write(JSON.stringify({ event, ...fields }) + '\n');
}

// "command --name value…": the little command line that all client programs share.
function parse(words) {
  const options = { command: words[0] };
  for (let at = 1; at + 1 < words.length; at += 2) {
    if (!words[at].startsWith('--')) throw new Error(`not an option: ${words[at]}`);
    options[words[at].slice(2)] = words[at + 1];
  }
  return options;
}

// "prefix-index|" repeated to the wanted number of bytes, or once without a bar when no size is given.
function body(options, index) {
  const unit = `${options.body || 'body'}-${index}`;
  const size = Number(options['body-size'] || 0);
  return size ? Buffer.alloc(size, unit + '|') : Buffer.from(unit);
}

function message(options, index) {
  const tags = (options.tags || '').split(',');
  const built = new Message(options.topic, tags[index % tags.length], body(options, index));
  if (!tags[0]) delete built.properties.TAGS;
  if (options.keys) built.keys = options.keys.replaceAll('{i}', index).split(' ');
  Object.assign(built.properties, JSON.parse(options.properties || '{}'));
  if (options['delay-level']) built.delayTimeLevel = Number(options['delay-level']);
  return built;
}

// The HTTP client is demanded, but used only to ask an address server for nameservers.
function settings(options) {
  return { nameSrv: options.namesrv, httpclient: {} };
}

async function produce(options) {
  if ((options.mode || 'sync') !== 'sync') throw new Error(`this client cannot send ${options.mode}`);
  const producer = new Producer({
    ...settings(options),
    producerGroup: options.group || 'interop-producer',
    compressMsgBodyOverHowmuch: Number(options['compress-over'] || 4096),
  });
  await producer.ready();
  const first = Number(options.first || 0);
  const count = Number(options.count || 1);
  for (let index = first; index < first + count; index++) {
    const result = await producer.send(message(options, index));
    emit('sent', {
      index,
      count: 1,
      status: result.sendStatus,
      offsetMsgId: result.msgId,
      queueId: Number(result.messageQueue.queueId),
      brokerName: result.messageQueue.brokerName,
      queueOffset: Number(result.queueOffset),
    });
  }
  await producer.close();
  emit('done', { count });
}

function describe(received) {
  emit('message', {
    topic: received.topic,
    queueId: received.queueId,
    queueOffset: Number(received.queueOffset),
    commitLogOffset: Number(received.commitLogOffset),
    storeSize: received.storeSize,
    offsetMsgId: received.msgId,
    keys: received.keys,
    tags: received.tags,
    properties: { ...received.properties },
    flag: received.flag,
    sysFlag: received.sysFlag,
    bornTimestamp: Number(received.bornTimestamp),
    storeTimestamp: Number(received.storeTimestamp),
    bodyCrc: received.bodyCRC,
    reconsumeTimes: received.reconsumeTimes,
    preparedTransactionOffset: Number(received.preparedTransactionOffset),
    bodySize: received.body.length,
    bodySha256: crypto.createHash('sha256').update(received.body).digest('hex'),
  });
}

// Receives until enough messages came, time is up, or a line (or the end) of standard input asks it to stop.
async function consume(options) {
  const starts = { first: 'CONSUME_FROM_FIRST_OFFSET', last: 'CONSUME_FROM_LAST_OFFSET', timestamp: 'CONSUME_FROM_TIMESTAMP' };
  const consumer = new Consumer({
    ...settings(options),
    consumerGroup: options.group,
    isBroadcast: options.model === 'broadcasting',
    instanceName: String(process.pid),
    ...(options['max-reconsume-times'] ? { maxReconsumeTimes: Number(options['max-reconsume-times']) } : {}),
    rebalanceInterval: 2000,
    consumeFromWhere: ConsumeFromWhere[starts[options.from || 'first']],
    ...(options.timestamp ? { consumeTimestamp: options.timestamp } : {}),
  });
  consumer.on('error', problem => console.error(problem));
  const expected = Number(options.expect || Infinity);
  let received = 0;
  const finished = new Promise(resolve => {
    consumer.subscribe(options.topic, options.tag || '*', async each => {
      describe(each);
      if (++received >= expected) setTimeout(resolve, Number(options['linger-ms'] || LINGER_MS));
      if (each.reconsumeTimes < Number(options.fail || 0)) throw new Error('it is to fail');
    });
    setTimeout(resolve, 1000 * Number(options.timeout || 60));
    process.stdin.once('data', resolve).once('end', resolve);
  });
  await consumer.ready();
  emit('started', {});
  await finished;
  await consumer.close();
  emit('done', { count: received });
}

async function main() {
  const options = parse(process.argv.slice(2));
  const commands = { produce, consume };
  if (!commands[options.command]) throw new Error(`no such command: ${options.command}`);
  await commands[options.command](options);
}

main().then(
  () => process.exit(0),
  problem => {
    emit('error', { type: problem.name, code: problem.code, message: problem.message });
    process.exit(1);
  }
);
