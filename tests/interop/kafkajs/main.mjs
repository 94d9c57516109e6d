// kafkajs: see tests/interop/__init__.py for what every client program does.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import kafkajs from "kafkajs";
import snappy from "kafkajs-snappy";

const { Kafka, CompressionTypes, CompressionCodecs, Partitioners, logLevel } = kafkajs;
CompressionCodecs[CompressionTypes.Snappy] = snappy;

// kafkajs itself brings none and gzip; lz4 and zstd would need native packages.
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy };
const PER_SEND = 100;

const [bootstrap, topic, groupId, clientId, partitions] = process.argv.slice(2);
const lines = readFileSync(0, "utf8").split("\n").filter(Boolean);
const ssl = process.env.TLS_CA ? { ca: [readFileSync(process.env.TLS_CA)] } : undefined;
const kafka = new Kafka({ clientId, brokers: bootstrap.split(","), ssl, logLevel: logLevel.WARN });

const admin = kafka.admin();
await admin.connect();
await admin.createTopics({ topics: [{ topic, numPartitions: Number(partitions), replicationFactor: 1 }] });
if (!(await admin.listTopics()).includes(topic)) throw new Error(`${topic} is not listed`);
const described = (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0];

const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
await producer.connect();
let produced = 0;
const codecs = Object.keys(CODECS);
for (const [n, codec] of codecs.entries()) {
  const messages = lines
    .filter((_, index) => index % codecs.length === n)
    .map((line) => line.split("\t"))
    .map(([key, value]) => ({ key, value }));
  for (let start = 0; start < messages.length; start += PER_SEND) {
    const chunk = messages.slice(start, start + PER_SEND);
    const answers = await producer.send({ topic, messages: chunk, acks: -1, compression: CODECS[codec] });
    if (answers.every((answer) => answer.errorCode === 0)) produced += chunk.length;
  }
}
await producer.disconnect();

const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 500 });
await consumer.connect();
await consumer.subscribe({ topics: [topic], fromBeginning: true });
const consumed = [];
const ends = new Map();
await new Promise((resolve, reject) => {
  consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
  consumer
    .run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        consumed.push(`${message.key}\t${message.value}`);
        ends.set(partition, (BigInt(message.offset) + 1n).toString());
        if (consumed.length === lines.length) resolve();
      },
    })
    .catch(reject);
});
await consumer.commitOffsets([...ends].map(([partition, offset]) => ({ topic, partition, offset })));
await consumer.disconnect();

const [offsets] = await admin.fetchOffsets({ groupId, topics: [topic] });
await admin.disconnect();

const { version } = createRequire(import.meta.url)("kafkajs/package.json");
console.log(
  JSON.stringify({
    client: "kafkajs",
    version,
    codecs,
    partitions: described.partitions.length,
    produced,
    consumed: consumed.length,
    committed: offsets.partitions.reduce((sum, { offset }) => sum + Math.max(0, Number(offset)), 0),
    sha256: createHash("sha256").update(consumed.sort().join("\n")).digest("hex"),
  }),
);
