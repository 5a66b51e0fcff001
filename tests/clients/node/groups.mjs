// Members of the consumer protocol (KIP-848) on platformatic's client, with one line per successful step.
//
//   groups.mjs BOOTSTRAP TOPIC, which is created with four partitions
import { Admin, Consumer, Producer, stringDeserializers, stringSerializers } from "@platformatic/kafka";

const [bootstrap, topic] = process.argv.slice(2);
const PARTITIONS = 4;
const LIMIT_MS = 40_000;
const client = { clientId: "groups", bootstrapBrokers: [bootstrap] };
const read = new Map();
let sent = 0;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(step, condition) {
  for (const deadline = Date.now() + LIMIT_MS; !condition(); await pause(20)) {
    if (Date.now() > deadline) throw new Error(`not within ${LIMIT_MS} ms: ${step}`);
  }
  console.log(step);
}

// A consumer that reads records and commits automatically.
class Member {
  constructor(groupId) {
    const options = { groupId, groupProtocol: "consumer", deserializers: stringDeserializers, maxWaitTime: 100 };
    this.consumer = new Consumer({ ...client, ...options });
  }

  async start() {
    const from = { mode: "committed", fallbackMode: "earliest", autocommit: 100 };
    this.stream = await this.consumer.consume({ topics: [topic], ...from });
    this.stream.on("data", ({ value }) => read.set(value, (read.get(value) ?? 0) + 1));
    this.stream.on("offsets", () => (this.placed = { count: this.count, at: Date.now() }));
    this.stream.on("error", (error) => {
      console.error(error);
      process.exit(1);
    });
    return this;
  }

  get count() {
    return (this.consumer.assignments ?? []).reduce((sum, one) => sum + one.partitions.length, 0);
  }

  // Return whether the member has `count` partitions and continues at its position. When an assignment changes, this
  // client seeks to the committed offsets of all partitions, and reads later records again, with Kafka too.
  has(count) {
    return this.count === count && this.placed?.count === count && Date.now() - this.placed.at > 500;
  }

  async stop() {
    await this.stream.close();
    await this.consumer.close(true);
  }
}

const producer = new Producer({ ...client, serializers: stringSerializers });

async function send(count) {
  const numbers = [...Array(count).keys()];
  const messages = numbers.map((n) => ({ topic, partition: n % PARTITIONS, value: `v${sent + n}` }));
  await producer.send({ messages, acks: -1 });
  sent += count;
}

const isReadOnce = () => read.size === sent && [...read.values()].every((times) => times === 1);

const admin = new Admin(client);
await admin.createTopics({ topics: [topic], partitions: PARTITIONS, replicas: 1 });
const one = await new Member(`g-${topic}`).start();
await until("one has all", () => one.has(PARTITIONS));
await send(100);
const other = await new Member(`g-${topic}`).start();
await until("two share", () => one.count === 2 && other.has(2));
await send(100);
await until("each record is read once", isReadOnce);
await pause(500); // offsets of read records are committed every 100 ms
one.placed = undefined; // a smaller assignment causes no seek
await other.stop();
await until("one has left", () => one.has(PARTITIONS));
await send(100);
await until("each record is still read once", isReadOnce);
await one.stop();
await producer.close();
await admin.close();
