// Embeds texts and prints the similarity of each to the first: node embed.js SERVERS MODEL TEXT...
// The variable TASK may be embed_sparse or embed_tokens, for models that have such embeddings.
import { randomBytes } from "node:crypto";
import { decode, encode } from "@msgpack/msgpack";
import { Kafka, logLevel } from "kafkajs";

const REPLY_TOPIC = "penstock.replies";
const PARTITION = 0;
const TIMEOUT_MS = 30_000;
const REQUEST = process.env.TASK ? { task: process.env.TASK } : { task: "embed", opts: { normalize: true } };

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
        value: Buffer.from(encode({ v: 1, model, text: texts, ...REQUEST })),
        headers: {
          kafka_correlationId: call,
          kafka_replyTopic: REPLY_TOPIC,
          kafka_replyPartition: partition,
          "penstock-deadline-ms": String(Date.now() + TIMEOUT_MS),
        },
      }],
    });
    return similarities(decode(await reply.value));
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

// Of each text to the first: the dot product, or the sum of the best one of each token.
function similarities(reply) {
  if (!reply.ok) throw new Error(`${reply.error.code}: ${reply.error.message}`);
  if (reply.sparse) {
    const rows = weights(reply.sparse);
    return rows.map((row) => sum([...rows[0]].map(([id, weight]) => weight * (row.get(id) ?? 0))));
  }
  const rows = vectors(reply.token_vectors ?? reply);
  return rows.map((row) => sum(rows[0].map((left) => Math.max(...row.map((right) => dot(left, right))))));
}

// Of each text a map from token ids to weights.
function weights({ lens, ids, weights }) {
  const [tokens, numbers] = [uint32s(ids), floats(weights)];
  return parts(uint32s(lens), (i) => [tokens[i], numbers[i]]).map((row) => new Map(row));
}

// Of each text its vectors: one, or one for each token.
function vectors({ lens, shape: [rows, dim], data }) {
  const numbers = floats(data);
  const vector = (i) => numbers.slice(i * dim, (i + 1) * dim);
  return parts(lens ? uint32s(lens) : Array(rows).fill(1), vector);
}

function parts(lens, item) {
  let start = 0;
  return lens.map((length) => Array.from({ length }, () => item(start++)));
}

// Numbers on the wire are little-endian.
function uint32s(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  return Array.from({ length: data.byteLength / 4 }, (_, i) => view.getUint32(4 * i, true));
}

function floats(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  return Array.from({ length: data.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

const sum = (numbers) => numbers.reduce((total, x) => total + x, 0);
const dot = (left, right) => sum(left.map((x, i) => x * right[i]));

const [servers, model, ...texts] = process.argv.slice(2);
try {
  const found = await embed(servers, model, texts);
  found.forEach((similarity, i) => console.log(`${similarity.toFixed(3)}  ${texts[i]}`));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
