// dynalite on a free port of loopback, in memory. Prints the port; ends when its standard input does.
"use strict";

const dynalite = require("dynalite");

const server = dynalite({ createTableMs: 50, updateTableMs: 50, deleteTableMs: 50 });
server.listen(0, "127.0.0.1", () => console.log(`port ${server.address().port}`));
process.stdin.resume().on("end", () => process.exit(0));
