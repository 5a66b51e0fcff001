// A producer and a member of a group while leaders and coordinators move, on platformatic's client: see moving.py.
//
//   moving.mjs BOOTSTRAP TOPIC COUNT
import { Consumer, Producer, stringDeserializers, stringSerializers } from "@platformatic/kafka";

const [bootstrap, topic, words] = process.argv.slice(2);
const count = Number(words);
const client = { clientId: "moving", bootstrapBrokers: bootstrap.split(","), retries: 50, retryDelay: 50 };
const sessions = { sessionTimeout: 6000, rebalanceTimeout: 6000, heartbeatInterval: 1000 };
const read = new Set();
const failed = [];
let acked = 0;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// The stream of this client fails after a new leader epoch of a partition that it reads, because it repeats the previous
// epoch (FENCED_LEADER_EPOCH, with Kafka too); the application then restarts at the committed offsets. A member whose
// coordinator moves while the member leaves stays in the group until its session ends, and each new coordinator restarts
// the sessions. Sessions are short, because a rebalance waits for their end.
let consumer;
let stream;
async function consume() {
  consumer = new Consumer({ ...client, ...sessions, groupId: topic, deserializers: stringDeserializers, maxWaitTime: 100 });
  stream = await consumer.consume({ topics: [topic], mode: "committed", fallbackMode: "earliest", autocommit: 100 });
  stream.on("data", ({ value }) => {
    if (read.size === 0) console.log("ready");
    read.add(value);
  });
  stream.on("error", again);
}

async function again() {
  const former = consumer;
  await former.close(true).catch(() => {});
  for (let done = false; !done; await pause(100)) {
    done = await consume().then(() => true, () => false);
  }
}

await consume();
const producer = new Producer({ ...client, idempotent: true, serializers: stringSerializers });
// This client looks up the leader once after NOT_LEADER_OR_FOLLOWER, and then repeats the request at that node only: after a
// second move meanwhile, the application sends again.
async function send(n) {
  try {
    await producer.send({ messages: [{ topic, partition: n % 3, value: String(n) }], acks: -1 });
    acked++;
  } catch (error) {
    if (error.findBy?.("hasStaleMetadata", true)) return send(n);
    failed.push(String(error));
  }
}

for (let n = 0; n < count; n++) {
  await send(n);
  await pause(8);
}
while (read.size < count) await pause(20);
console.log(JSON.stringify({ acked, failed, read: read.size }));
process.exit(0);
