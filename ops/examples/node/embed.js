// Embeds texts and prints the cosine similarity of each to the first: node embed.js SERVERS MODEL TEXT...
import { randomBytes } from "node:crypto";
import { decode, encode } from "@msgpack/msgpack";
import { Kafka, logLevel } from "kafkajs";

const REPLY_TOPIC = "penstock.replies";
const PARTITION = 0;
const TIMEOUT_MS = 30_000;

async function embed(servers, model, texts) {
  const kafka = new Kafka({ brokers: servers.split(","), logLevel: logLevel.ERROR });
  const call = randomBytes(16);
  const consumer = kafka.consumer({ groupId: `embed-example-${call.toString("hex")}` });
  const producer = kafka.producer();
  try {
    await Promise.all([consumer.connect(), producer.connect()]);
    const reply = receive(kafka, consumer, call);
    await reply.ready;
    const partition = Buffer.alloc(4);
    partition.writeInt32BE(PARTITION);
    await producer.send({
      topic: `penstock.requests.${model}`,
      messages: [{
        value: Buffer.from(encode({ v: 1, model, task: "embed", text: texts, opts: { normalize: true } })),
        headers: {
          kafka_correlationId: call,
          kafka_replyTopic: REPLY_TOPIC,
          kafka_replyPartition: partition,
          "penstock-deadline-ms": String(Date.now() + TIMEOUT_MS),
        },
      }],
    });
    return vectors(decode(await reply.value));
  } finally {
    await Promise.all([consumer.disconnect(), producer.disconnect()]);
  }
}

// `ready` resolves when no reply can be missed any more, `value` when the reply to `call` is there.
function receive(kafka, consumer, call) {
  let resolve, reject;
  const value = new Promise((...settle) => ([resolve, reject] = settle));
  const timer = setTimeout(() => reject(new Error("no reply in time")), TIMEOUT_MS);
  const ready = (async () => {
    const end = await endOffset(kafka);
    await consumer.subscribe({ topic: REPLY_TOPIC });
    await consumer.run({
      eachMessage: async ({ message }) => {
        if (call.equals(message.headers.kafka_correlationId ?? Buffer.alloc(0))) {
          clearTimeout(timer);
          resolve(message.value);
        }
      },
    });
    consumer.seek({ topic: REPLY_TOPIC, partition: PARTITION, offset: end });
  })();
  return { ready, value };
}

async function endOffset(kafka) {
  const admin = kafka.admin();
  await admin.connect();
  try {
    const offsets = await admin.fetchTopicOffsets(REPLY_TOPIC);
    return offsets.find(({ partition }) => partition === PARTITION).high;
  } finally {
    await admin.disconnect();
  }
}

function vectors(reply) {
  if (!reply.ok) throw new Error(`${reply.error.code}: ${reply.error.message}`);
  const [rows, dim] = reply.shape;
  const view = new DataView(reply.data.buffer, reply.data.byteOffset);
  const row = (i) => Array.from({ length: dim }, (_, j) => view.getFloat32(4 * (i * dim + j), true));
  return Array.from({ length: rows }, (_, i) => row(i));
}

const dot = (left, right) => left.reduce((sum, x, i) => sum + x * right[i], 0);

const [servers, model, ...texts] = process.argv.slice(2);
try {
  const rows = await embed(servers, model, texts);
  rows.forEach((row, i) => console.log(`${dot(rows[0], row).toFixed(3)}  ${texts[i]}`));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
