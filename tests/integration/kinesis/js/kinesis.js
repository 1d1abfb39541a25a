// kinesis-local on free ports of loopback. Prints the port of plain HTTP; ends when its standard input does.
"use strict";

const net = require("net");

const PLAIN_PORT = 4568; // what it would listen on, and how the listener is known; the other one is TLS
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...given) {
  const plain = (given[0]?.port ?? given[0]) === PLAIN_PORT;
  const wanted = given.find((each) => typeof each === "function");
  return listen.call(this, 0, "127.0.0.1", (...all) => {
    if (plain) console.log(`port ${this.address().port}`);
    if (wanted) wanted.apply(this, all);
  });
};
process.stdin.resume().on("end", () => process.exit(0));

const quick = ["CREATE_STREAM", "DELETE_STREAM", "MERGE_SHARDS", "SPLIT_SHARD", "UPDATE_SHARD_COUNT"];
for (const kind of [...quick, "REGISTER_STREAM_CONSUMER", "DEREGISTER_STREAM_CONSUMER"]) {
  process.env[`${kind}_DURATION`] ??= "50ms";
}
process.env.KINESIS_MOCK_PLAIN_PORT = String(PLAIN_PORT);
process.env.KINESIS_MOCK_CERT_PATH = require.resolve("kinesis-local/server.json");
process.env.LOG_LEVEL ??= "ERROR";
process.env.SHARD_LIMIT ??= "1000";
require("kinesis-local/main.js");
