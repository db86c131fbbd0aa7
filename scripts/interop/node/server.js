// Serves the probe service with the Thrift library for Node.js:
//
//   server.js events PORT:TRANSPORT:PROTOCOL...
"use strict";

const thrift = require("thrift");
const form = require("./form");
const Probe = require("./Probe");
const { Refused } = require("./probe_types");

// newHandler answers at once, in the callback: a header server writes a later
// answer in the form of what has come in since.
function newHandler() {
  const fires = new Map();
  return {
    echo: (text, answer) => answer(null, text),
    echoBinary: (data, answer) => answer(null, data),
    echoTree: (tree, answer) => answer(null, tree),
    refuse: (why, answer) => answer(new Refused({ code: 7, why })),
    ping: (answer) => answer(null),
    fire: (key) => fires.set(key, (fires.get(key) || 0) + 1),
    fired: (key, answer) => answer(null, fires.get(key) || 0),
  };
}

for (const spec of process.argv.slice(3)) {
  const [port, transport, protocol] = spec.split(":");
  let processor = new Probe.Processor(newHandler());
  if (transport === "multiplexed") {
    const multiplexed = new thrift.MultiplexedProcessor();
    multiplexed.registerProcessor("Probe", processor);
    processor = multiplexed;
  }
  const server = thrift.createMultiplexServer(processor, form.options(transport, protocol, true));
  server.on("error", (err) => console.error(spec, err)); // of one connection, too: go on
  server.listen(Number(port), "127.0.0.1");
}
