// kafkajs: see tests/interop/reactions. Arguments: role, bootstrap servers, topic, client id.
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import kafkajs from "kafkajs";

const { Kafka, logLevel } = kafkajs;
const WAIT = 15_000;
const [role, bootstrap, topic, clientId] = process.argv.slice(2);
let heard = [];
const logCreator = () => ({ log }) => heard.push(log.error ? `${log.message}: ${log.error}` : log.message);
const kafka = new Kafka({ clientId, brokers: [bootstrap], logLevel: logLevel.WARN, logCreator });
const late = (promise) =>
  Promise.race([promise, new Promise((_, fail) => setTimeout(() => fail(new Error("nothing")), WAIT))]);

async function client() {
  if (role === "producer") {
    const producer = kafka.producer();
    await producer.connect();
    return () => producer.send({ topic, messages: [{ value: "x" }] });
  }
  if (role === "consumer") {
    const consumer = kafka.consumer({ groupId: clientId, maxWaitTimeInMs: 500 });
    const read = [];
    let wake = () => {};
    consumer.on(consumer.events.CRASH, ({ payload }) => heard.unshift(`CRASH event: ${payload.error}`));
    await consumer.connect();
    await consumer.subscribe({ topics: [topic], fromBeginning: true });
    await consumer.run({ eachMessage: async ({ message }) => (read.push(message), wake()) });
    return async () => {
      if (!read.length) await new Promise((resolve) => (wake = resolve));
      read.shift();
    };
  }
  const admin = kafka.admin();
  await admin.connect();
  return () => admin.createTopics({ topics: [{ topic: `new-${randomUUID()}`, numPartitions: 1 }] });
}

const attempt = await client();
for await (const _ of createInterface({ input: process.stdin })) {
  heard = [];
  const began = Date.now();
  const said = await late(attempt()).then(() => "", (error) => String(error));
  console.log(JSON.stringify({ said, heard: heard.slice(0, 1), seconds: Math.round((Date.now() - began) / 100) / 10 }));
}
process.exit(0);
