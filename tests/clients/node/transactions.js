// The transactions of test_transactions.py on kafkajs, with the results as one line of JSON.
//
//   transactions.js BOOTSTRAP TOPIC
process.env.KAFKAJS_NO_PARTITIONER_WARNING = "1";
const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "transactions", brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 5 } });
const CONSUMED = { commit: 7, abort: 9 }; // offsets of TOPIC-in that a transaction commits

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function begin() {
  const producer = kafka.producer({ transactionalId: topic, maxInFlightRequests: 1, idempotent: true });
  await producer.connect();
  return producer;
}

async function written(producer, note) {
  const transaction = await producer.transaction();
  await transaction.send({ topic, messages: [...Array(5).keys()].map((n) => ({ value: `${note} ${n}`, partition: 0 })) });
  return transaction;
}

async function committedOffset() {
  const admin = kafka.admin();
  await admin.connect();
  const [found] = await admin.fetchOffsets({ groupId: topic, topics: [`${topic}-in`] });
  await admin.disconnect();
  return Number(found.partitions[0].offset);
}

// Return all records up to the last of the second producer; kafkajs consumes only in groups.
async function read() {
  const consumer = kafka.consumer({ groupId: `${topic}-readers`, readUncommitted: false, maxWaitTimeInMs: 100 });
  const found = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({ eachMessage: async ({ message }) => found.push(message.value.toString()) });
  for (const deadline = Date.now() + 30_000; found.at(-1) !== "second 4" && Date.now() < deadline; ) await pause(20);
  await consumer.disconnect();
  return found;
}

async function main() {
  const first = await begin();
  for (const [note, offset] of Object.entries(CONSUMED)) {
    const transaction = await written(first, note);
    const partitions = [{ partition: 0, offset: String(offset) }];
    await transaction.sendOffsets({ consumerGroupId: topic, topics: [{ topic: `${topic}-in`, partitions }] });
    await transaction[note]();
  }
  const offset = await committedOffset();
  const open = await written(first, "open");
  const second = await begin();
  const transaction = await written(second, "second");
  await transaction.commit();
  let fenced = "";
  try {
    await open.commit();
  } catch (error) {
    fenced = error.type;
  }
  await first.disconnect();
  await second.disconnect();
  console.log(JSON.stringify({ read: await read(), offset, fenced }));
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
