// The client program for kafkajs; it speaks the JSON lines of tests/conformance/clients/programs/common.py.
//
// LZ4 and zstd come from packages that install without a compiler: kafkajs's own plugins for them build native code
// that current Node headers refuse.
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");
const lz4 = require("lz4-napi");
const zstd = require("@bokuweb/zstd-wasm");
const snappy = require("kafkajs-snappy");
const { CompressionCodecs, CompressionTypes, Kafka, PartitionAssigners, logLevel } = require("kafkajs");

const BASE_TIMESTAMP = 1600000000000;
const SESSION_TIMEOUT_MS = 2000;
const HEARTBEAT_MS = 300;
const TYPES = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
};

CompressionCodecs[CompressionTypes.Snappy] = snappy;
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: async (buffer) => lz4.decompressFrame(buffer),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
});

const valueOf = (number) => `${number}|${"abcdefgh".repeat(12)}`;
const nowNs = () => Number(process.hrtime.bigint());
const emit = (event, fields) =>
  process.stdout.write(JSON.stringify({ event, at_ns: nowNs(), ...fields }) + "\n");

// What the test says under librdkafka's names (tests/fixtures/client_security.py), in kafkajs's.
function securityOf(properties) {
  const security = {};
  const read = (name) => properties[name] && fs.readFileSync(properties[name]);
  if (properties["security.protocol"]?.endsWith("SSL")) {
    security.ssl = {
      ca: [read("ssl.ca.location")],
      cert: read("ssl.certificate.location"),
      key: read("ssl.key.location"),
    };
  }
  const mechanism = properties["sasl.mechanism"]?.toLowerCase();
  if (mechanism === "oauthbearer") {
    const oauthBearerProvider = async () => ({ value: properties.token });
    security.sasl = { mechanism, oauthBearerProvider };
  } else if (mechanism) {
    const [username, password] = [properties["sasl.username"], properties["sasl.password"]];
    security.sasl = { mechanism, username, password };
  }
  return security;
}

const PROPERTIES = JSON.parse(process.env.CLIENT_PROPERTIES ?? "{}");
const SECURITY = securityOf(PROPERTIES);
const client = (clientId) =>
  new Kafka({
    clientId,
    brokers: process.argv[2].split(","),
    ...SECURITY,
    // How long before the end of a session it logs in again: its ten seconds are longer than the sessions of the tests.
    reauthenticationThreshold: 500,
    logLevel: logLevel.WARN,
    logCreator: () => ({ log }) => process.stderr.write(JSON.stringify(log) + "\n"),
    retry: { initialRetryTime: 50, maxRetryTime: 200, retries: PROPERTIES.impatient ? 5 : 60 },
  });

const producers = new Map();
let leave = null; // what ends the running member

async function create({ topic, partitions }) {
  const admin = client("admin").admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: partitions }] });
  await admin.disconnect();
  emit("created", {});
}

async function producerFor(idempotent) {
  if (!producers.has(idempotent)) {
    const producer = client("producer").producer({ idempotent, maxInFlightRequests: 1 });
    await producer.connect();
    producers.set(idempotent, producer);
  }
  return producers.get(idempotent);
}

async function produce({ topic, partitions, first, count, codec, idempotent, acks }) {
  const producer = await producerFor(idempotent);
  const byPartition = Array.from({ length: partitions }, () => []);
  for (let n = first; n < first + count; n++) byPartition[n % partitions].push(n);
  const messages = byPartition.flat().map((n) => ({
    key: String(n),
    value: valueOf(n),
    partition: n % partitions,
    headers: { n: String(n) },
    timestamp: String(BASE_TIMESTAMP + n),
  }));
  const compression = TYPES[codec];
  const required = acks === "all" ? -1 : Number(acks);
  const results = await producer.send({ topic, messages, compression, acks: required });
  const records = results.flatMap(({ partition, baseOffset }) =>
    byPartition[partition].map((n, index) => [n, partition, Number(baseOffset) + index]),
  );
  emit("produced", { records: records.sort((a, b) => a[0] - b[0]) });
}

const headersOf = (headers) =>
  Object.entries(headers ?? {}).map(([name, value]) => [name, value.toString()]);

// kafkajs reads only as a member of a group, so this is one of its own.
async function consume({ topic, count }) {
  const consumer = client("reader").consumer({ groupId: `reader-${topic}`, maxWaitTimeInMs: 100 });
  const records = [];
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer
      .run({
        eachMessage: async ({ partition, message }) => {
          records.push([
            partition,
            Number(message.offset),
            message.key.toString(),
            message.value.toString(),
            headersOf(message.headers),
            Number(message.timestamp),
          ]);
          if (records.length === count) resolve();
        },
      })
      .catch(reject);
  });
  await consumer.disconnect();
  emit("consumed", { records });
}

// A member of a group: commits what it got after each batch, and says so.
async function member({ name, group, topic }) {
  const consumer = client(name).consumer({
    groupId: group,
    sessionTimeout: SESSION_TIMEOUT_MS,
    heartbeatInterval: HEARTBEAT_MS,
    rebalanceTimeout: 10000,
    maxWaitTimeInMs: 100,
    partitionAssigners: [PartitionAssigners.roundRobin],
  });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) =>
    emit("assigned", {
      partitions: payload.memberAssignment[topic] ?? [],
      member: payload.memberId,
    }),
  );
  consumer.on(consumer.events.REBALANCING, () => emit("revoked", {}));
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: true,
    eachBatch: async ({ batch, isRunning, isStale }) => {
      if (!isRunning() || isStale() || batch.messages.length === 0) return;
      const rows = batch.messages.map(({ offset, value }) => [
        batch.partition,
        Number(offset),
        value.toString(),
      ]);
      emit("records", { records: rows });
      const offset = rows[rows.length - 1][1] + 1;
      try {
        await consumer.commitOffsets([
          { topic, partition: batch.partition, offset: String(offset), metadata: name },
        ]);
      } catch (error) {
        emit("commit_failed", { message: String(error) });
        throw error; // the batch comes again
      }
      emit("committed", { offsets: { [batch.partition]: offset } });
    },
  });
  leave = async () => {
    await consumer.disconnect();
    emit("left", {});
  };
}

// Rounds of which every second one is aborted, two of them with an offset; then a producer that was replaced.
async function transactions({ topic, partitions, rounds, offset }) {
  const transactionalProducer = async () => {
    const transactionalId = `x-${topic}`;
    const producer = client("producer").producer({ transactionalId, maxInFlightRequests: 1, idempotent: true });
    await producer.connect();
    return producer;
  };
  const send = (transaction, value, partition) =>
    transaction.send({ topic, messages: [{ value, partition }] });
  const producer = await transactionalProducer();
  for (let round = 0; round < rounds; round++) {
    const transaction = await producer.transaction();
    for (let part = 0; part < 4; part++) await send(transaction, `${round}-${part}`, part % partitions);
    if (round >= rounds - 2) {
      const position = String(round % 2 ? offset + 1 : offset);
      const topics = [{ topic, partitions: [{ partition: 0, offset: position }] }];
      await transaction.sendOffsets({ consumerGroupId: `g-${topic}`, topics });
    }
    await (round % 2 ? transaction.abort() : transaction.commit());
  }
  const zombie = await producer.transaction();
  await send(zombie, "zombie", 0);
  const replacement = await transactionalProducer();
  const kept = await replacement.transaction();
  await send(kept, "kept", partitions - 1);
  const refusal = await zombie.commit().then(
    () => "none",
    (error) => error.type,
  );
  await kept.commit();
  await producer.disconnect();
  await replacement.disconnect();
  emit("done", { zombie: refusal });
}

async function main() {
  await zstd.init();
  const actions = { create, produce, consume, member, transactions, leave: () => leave() };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    try {
      await actions[command.do](command);
    } catch (error) {
      emit("error", { message: String(error), trace: error.stack });
    }
  }
  for (const producer of producers.values()) await producer.disconnect();
  process.exit(0);
}

main();
