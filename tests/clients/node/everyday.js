// The everyday scenario on kafkajs, with one line of JSON per step; everyday.py describes the steps and their results.
//
//   everyday.js BOOTSTRAP TOPIC START_MS
process.env.KAFKAJS_NO_PARTITIONER_WARNING = "1";
const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic, startMs] = process.argv.slice(2);
const names = [topic, `${topic}-time`, `${topic}-group`];
const [GROUP_PARTITIONS, PER_PHASE, TIMES] = [4, 10, 50];
const kafka = new Kafka({ clientId: "everyday", brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 5 } });
const WAIT_MS = 200; // maximum wait of a Fetch (5 s by default), which delays disconnect()
const none = { cannot: "only with a package of another author" };

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(what, condition) {
  for (const deadline = Date.now() + 60_000; !(await condition()); await pause(50)) {
    if (Date.now() > deadline) throw new Error(`not within a minute: ${what}`);
  }
}

async function withAdmin(act) {
  const admin = kafka.admin();
  await admin.connect();
  try {
    return await act(admin);
  } finally {
    await admin.disconnect();
  }
}

async function send(to, messages, compression = CompressionTypes.None, idempotent = false) {
  const producer = kafka.producer({ idempotent, maxInFlightRequests: 1 });
  await producer.connect();
  try {
    const [sent] = await producer.send({ topic: to, messages, compression, acks: -1 });
    return { offsets: messages.map((_, i) => Number(sent.baseOffset) + i) };
  } finally {
    await producer.disconnect();
  }
}

function compressible(note, partition) {
  return [...Array(10).keys()].map((n) => ({ value: `${note} ${n} ${"abc ".repeat(30)}`, partition }));
}

// Read `count` records in a group, from the beginning or from `seek`: kafkajs consumes only in groups.
async function consume(from, group, count, seek) {
  const consumer = kafka.consumer({ groupId: group, maxWaitTimeInMs: WAIT_MS });
  const found = [];
  await consumer.connect();
  try {
    await consumer.subscribe({ topics: [from], fromBeginning: true });
    await consumer.run({ eachMessage: async ({ partition, message }) => found.push({ partition, message }) });
    if (seek !== undefined) consumer.seek({ topic: from, partition: 0, offset: seek });
    await until("records", () => found.length >= count);
  } finally {
    await consumer.disconnect();
  }
  return found;
}

async function read() {
  const values = {};
  for (const { partition, message } of await consume(topic, `${topic}-read`, 30)) {
    (values[partition] ??= []).push(message.value.toString());
  }
  return { values };
}

async function join(name, from, reads) {
  const member = { partitions: [] };
  const consumer = kafka.consumer({ groupId: from, heartbeatInterval: 300, maxWaitTimeInMs: WAIT_MS });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => (member.partitions = payload.memberAssignment[from] ?? []));
  consumer.on(consumer.events.CRASH, ({ payload }) => (member.failure = payload.error));
  member.leave = () => consumer.disconnect();
  await consumer.connect();
  await consumer.subscribe({ topics: [from], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      await consumer.commitOffsets([{ topic: from, partition, offset: String(Number(message.offset) + 1) }]);
      reads.push([name, partition, Number(message.offset), message.value.toString()]);
    },
  });
  return member;
}

async function group() {
  const name = `${topic}-group`;
  const [members, reads, held] = [{}, [], []];
  const sane = (condition) => () => {
    for (const member of Object.values(members)) if (member.failure) throw member.failure;
    return condition();
  };
  const phase = async (number) => {
    const share = GROUP_PARTITIONS / Object.keys(members).length;
    await until("a share for each member", sane(() => Object.values(members).every((m) => m.partitions.length === share)));
    held.push(Object.fromEntries(Object.entries(members).map(([who, m]) => [who, [...m.partitions].sort()])));
    const messages = [];
    for (let n = number * PER_PHASE; n < (number + 1) * PER_PHASE; n++) {
      for (let p = 0; p < GROUP_PARTITIONS; p++) messages.push({ value: `${p}-${n}`, partition: p });
    }
    await send(name, messages);
    await until("all is read", sane(() => reads.length >= GROUP_PARTITIONS * PER_PHASE * (number + 1)));
  };
  try {
    members.a = await join("a", name, reads);
    await phase(0);
    members.b = await join("b", name, reads);
    await phase(1);
    const { a } = members;
    delete members.a;
    await a.leave();
    await phase(2);
  } finally {
    for (const member of Object.values(members)) await member.leave();
  }
  return { reads, held };
}

async function byTime() {
  const name = `${topic}-time`;
  const messages = [...Array(TIMES).keys()].map((n) => ({ value: `record ${n}`, timestamp: String(Number(startMs) + 10 * n) }));
  await send(name, messages, CompressionTypes.GZIP);
  const [{ offset }] = await withAdmin((a) => a.fetchTopicOffsetsByTimestamp(name, Number(startMs) + 171));
  const found = await consume(name, `${name}-read`, TIMES - 18, offset);
  return { offset: Number(found[0].message.offset), values: found.map(({ message }) => message.value.toString()) };
}

const listed = async () => {
  const found = await withAdmin((a) => a.listTopics());
  return names.filter((name) => found.includes(name));
};

async function configs() {
  const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: ["retention.ms"] }];
  const value = async (a) => (await a.describeConfigs({ resources })).resources[0].configEntries[0].configValue;
  return withAdmin(async (a) => {
    const before = await value(a);
    const configEntries = [{ name: "retention.ms", value: "123456789" }];
    await a.alterConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries }] });
    let after;
    await until("the config has changed", async () => (after = await value(a)) !== before);
    return { before, after };
  });
}

const steps = {
  version: async () => ({ version: require("kafkajs/package.json").version }),
  create: async () => {
    const topics = [6, 1, GROUP_PARTITIONS].map((numPartitions, i) => ({ topic: names[i], numPartitions }));
    await withAdmin((a) => a.createTopics({ waitForLeaders: true, topics }));
    return { topics: names };
  },
  none: () => send(topic, compressible("none", 0)),
  gzip: () => send(topic, compressible("gzip", 1), CompressionTypes.GZIP),
  snappy: async () => none,
  lz4: async () => none,
  zstd: async () => none,
  idempotent: () => send(topic, compressible("idempotent", 5), CompressionTypes.None, true),
  read,
  group,
  "by time": byTime,
  list: async () => ({ topics: await listed() }),
  describe: async () => {
    const { topics } = await withAdmin((a) => a.fetchTopicMetadata({ topics: [topic] }));
    const partitions = [...topics[0].partitions].sort((one, two) => one.partitionId - two.partitionId);
    return { leaders: partitions.map(({ leader }) => leader) };
  },
  configs,
  delete: async () => {
    await withAdmin((a) => a.deleteTopics({ topics: [names[1]] }));
    await until("the topic is deleted", async () => !(await listed()).includes(names[1]));
    return { left: [] };
  },
};

(async () => {
  for (const [step, act] of Object.entries(steps)) {
    const said = await act().catch((error) => ({ error: String(error?.stack ?? error) }));
    console.log(JSON.stringify({ step, ...said }));
  }
})();
