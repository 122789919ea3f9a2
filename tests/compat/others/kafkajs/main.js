// What test_others.py asks of kafkajs: main.js STEP BOOTSTRAP [NAME...]. Prints what a step has done, as JSON.
import { Kafka, CompressionTypes, logLevel } from 'kafkajs';

const [step, bootstrap, ...names] = process.argv.slice(2);
const kafka = new Kafka({
  brokers: [bootstrap],
  clientId: 'kafkajs',
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 50, maxRetryTime: 1000, retries: 60 },
});

async function produce(topic, count) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (let number = 0; number < Number(count); number++) {
    await producer.send({
      topic,
      acks: -1,
      compression: number % 2 ? CompressionTypes.GZIP : CompressionTypes.None,
      messages: [{ key: `k${number % 10}`, value: `${number}`, headers: { number: `${number}` } }],
    });
    console.log(JSON.stringify({ sent: number }));
  }
  await producer.disconnect();
}

// Reads with two members until `count` different values were seen, and says who has read what.
async function consume(topic, group, count) {
  const seen = new Set();
  const members = [];
  let finished;
  const done = new Promise((resolve) => { finished = resolve; });
  for (let member = 0; member < 2; member++) {
    const consumer = kafka.consumer({ groupId: group, sessionTimeout: 10000, rebalanceTimeout: 10000 });
    await consumer.connect();
    await consumer.subscribe({ topics: [topic], fromBeginning: true });
    await consumer.run({
      eachMessage: async ({ partition, message }) => {
        seen.add(message.value.toString());
        console.log(JSON.stringify({
          member, partition, offset: Number(message.offset), value: message.value.toString(),
          header: message.headers.number?.toString(),
        }));
        if (seen.size === Number(count)) finished();
      },
    });
    members.push(consumer);
  }
  await done;
  for (const consumer of members) await consumer.disconnect();
}

// Each record of `input` in upper case into `output`, with its offset in one transaction; every third one is aborted first.
async function pipeline(input, output, group, count) {
  const producer = kafka.producer({
    transactionalId: `${group}-0`, idempotent: true, maxInFlightRequests: 1, transactionTimeout: 30000,
  });
  await producer.connect();
  const consumer = kafka.consumer({ groupId: group, readUncommitted: false });
  await consumer.connect();
  await consumer.subscribe({ topics: [input], fromBeginning: true });
  let committed = 0;
  let finished;
  const done = new Promise((resolve) => { finished = resolve; });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      const attempts = Number(message.offset) % 3 === 0 ? ['abort', 'commit'] : ['commit'];
      for (const attempt of attempts) {
        const transaction = await producer.transaction();
        await transaction.send({ topic: output, messages: [{ key: message.key, value: `done ${message.value}` }] });
        await transaction.sendOffsets({
          consumerGroupId: group,
          topics: [{ topic: input, partitions: [{ partition, offset: `${Number(message.offset) + 1}` }] }],
        });
        await (attempt === 'abort' ? transaction.abort() : transaction.commit());
      }
      committed += 1;
      if (committed === Number(count)) finished();
    },
  });
  await done;
  await consumer.disconnect();
  await producer.disconnect();
  console.log(JSON.stringify({ committed }));
}

async function admin(topic) {
  const client = kafka.admin();
  await client.connect();
  await client.createTopics({
    topics: [{ topic, numPartitions: 2, configEntries: [{ name: 'retention.ms', value: '60000' }] }],
  });
  const { topics } = await client.fetchTopicMetadata({ topics: [topic] });
  await client.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  const offsets = await client.fetchTopicOffsets(topic);
  await client.deleteTopics({ topics: [topic] });
  const left = await client.listTopics();
  await client.disconnect();
  console.log(JSON.stringify({
    partitions: topics[0].partitions.length, grown: offsets.length, deleted: !left.includes(topic),
  }));
}

await { produce, consume, pipeline, admin }[step](...names);
// A consumer that was restarting when it was disconnected restarts all the same, and would keep the process.
process.exit(0);
