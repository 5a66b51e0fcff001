// The shared client scenario on kafkajs; every command prints one JSON value.
//
//   client.js BOOTSTRAP create TOPIC PARTITIONS
//   client.js BOOTSTRAP delete TOPIC
//   client.js BOOTSTRAP offsets TOPIC [TIMESTAMP_MS]
//   client.js BOOTSTRAP produce TOPIC PARTITION CODEC IDEMPOTENT   JSON lines {value, timestamp_ms} on standard input
//
// There is no consume command, because kafkajs consumes only in groups.
const { readFileSync } = require("node:fs");
const { CompressionTypes, Kafka, logLevel } = require("kafkajs");

const [bootstrap, command, topic, ...rest] = process.argv.slice(2);
process.env.KAFKAJS_NO_PARTITIONER_WARNING = "1";
const kafka = new Kafka({ clientId: "scenario", brokers: [bootstrap], logLevel: logLevel.ERROR, retry: { retries: 3 } });

async function withAdmin(act) {
  const admin = kafka.admin();
  await admin.connect();
  try {
    return await act(admin);
  } finally {
    await admin.disconnect();
  }
}

async function produce(partition, codec, idempotent) {
  const messages = readFileSync(0, "utf8")
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line))
    .map(({ value, timestamp_ms }) => ({ value, partition, timestamp: timestamp_ms ? String(timestamp_ms) : undefined }));
  const producer = kafka.producer({ idempotent, maxInFlightRequests: 1 });
  await producer.connect();
  try {
    const compression = codec === "gzip" ? CompressionTypes.GZIP : CompressionTypes.None;
    const [sent] = await producer.send({ topic, messages, compression, acks: -1 });
    const base = Number(sent.baseOffset);
    return messages.map((_, i) => base + i);
  } finally {
    await producer.disconnect();
  }
}

async function main() {
  switch (command) {
    case "create":
      return withAdmin((a) => a.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: Number(rest[0]) }] }));
    case "delete":
      return withAdmin((a) => a.deleteTopics({ topics: [topic] }));
    case "offsets":
      return withAdmin((a) => (rest[0] ? a.fetchTopicOffsetsByTimestamp(topic, Number(rest[0])) : a.fetchTopicOffsets(topic)));
    case "produce":
      return produce(Number(rest[0]), rest[1], rest[2] === "true");
    default:
      throw new Error(`unknown command ${command}`);
  }
}

main().then(
  (result) => console.log(JSON.stringify(result ?? null)),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
