// Makes each kind of call with the Thrift library for Node.js, checks the
// replies, and says "ok NAME" or "fail NAME why" of each:
//
//   client.js HOST PORT TRANSPORT PROTOCOL TAG
"use strict";

const assert = require("assert");
const thrift = require("thrift");
const Int64 = require("node-int64");
const form = require("./form");
const Wider = require("./Wider");
const { Leaf, Refused, Tree } = require("./probe_types");

const TIMEOUT = 15000; // ms; long: the machine may be busy

const [host, port, transport, protocol, tag] = process.argv.slice(2);

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Session is a connection and its client. Errors of the connection fail the call
// that waits, by the promise broken.
class Session {
  constructor() {
    this.connection = thrift.createConnection(host, port, form.options(transport, protocol, false));
    this.client =
      transport === "multiplexed"
        ? new thrift.Multiplexer().createClient("Probe", Wider, this.connection)
        : thrift.createClient(Wider, this.connection);
    this.broken = new Promise((_, reject) => {
      this.connection.on("error", reject);
      this.connection.on("close", () => reject(new Error("connection closed")));
    });
    this.broken.catch(() => {}); // also when no call waits
  }

  call(method, ...args) {
    const answer = new Promise((resolve, reject) => {
      this.client[method](...args, (err, result) => (err ? reject(err) : resolve(result)));
    });
    return Promise.race([answer, this.broken]);
  }

  end() {
    this.connection.end();
  }
}

async function echo(session, text) {
  const got = await session.call("echo", text);
  assert(got === text, `echo of ${text.length} bytes: got ${got.length}`);
}

async function binary(session) {
  const data = Buffer.alloc(1 << 20);
  for (let i = 0; i < data.length; i++) data[i] = i * 31 + (i >> 8);
  data.write(tag);
  const got = await session.call("echoBinary", data);
  assert(data.equals(got), `echo of a MiB: got ${got.length} other bytes`);
}

// The library sends several requests at once where it is not made to wait, and
// tells the replies apart by their sequence ids.
async function pipelined(session) {
  const texts = Array.from({ length: 20 }, (_, i) => `${tag} ${i}`.repeat(1 + i * 100));
  await Promise.all(texts.map((text) => echo(session, text)));
}

async function tree(session) {
  const leaf = (i) => new Leaf({ id: i, name: `${tag} größe ${i}`, on: i % 2 === 0, weight: i / 4 });
  const want = new Tree({
    leaf: leaf(-1),
    named: { "": leaf(0), [tag]: leaf(1) },
    leaves: Array.from({ length: 300 }, (_, i) => leaf(i)),
    numbers: { "-1": [], 7: [new Int64(1), new Int64(-1), new Int64(2 ** 40)] },
    few: [3, -300],
    blob: Buffer.from([0, 255, 128, 1]),
    small: -8,
  });
  const plain = (t) => ({
    ...t,
    numbers: Object.entries(t.numbers).map(([k, v]) => [k, v.map(Number)]),
    few: [...t.few].sort(),
    blob: [...t.blob],
  });
  assert.deepStrictEqual(plain(await session.call("echoTree", want)), plain(want));
}

async function refuse(session) {
  const err = await session.call("refuse", tag).then(
    () => assert.fail("not refused"),
    (err) => err,
  );
  assert(err instanceof Refused && err.code === 7 && err.why === tag, `another refusal: ${err}`);
}

async function unknown(session) {
  const err = await session.call("absent", tag).then(
    (got) => assert.fail(`an answer: ${got}`),
    (err) => err,
  );
  const { TApplicationException, TApplicationExceptionType } = thrift.Thrift;
  // The library writes no type, and reads it into another property than it has.
  const type = err.code || TApplicationExceptionType.UNKNOWN;
  assert(
    err instanceof TApplicationException &&
      type <= TApplicationExceptionType.UNKNOWN_METHOD &&
      err.message.includes("absent"),
    `another exception: ${err}`,
  );
}

// oneway fires n times. The calls may take effect after the next call has been
// answered, but not twice.
async function oneway(session, key, n) {
  for (let i = 0; i < n; i++) await session.call("fire", key);
  const end = Date.now() + TIMEOUT;
  let got;
  while ((got = await session.call("fired", key)) !== n && Date.now() < end) await sleep(5);
  assert(got === n, `fired ${n} times, came in ${got} times`);
}

const calls = {
  "string-0": (s) => echo(s, ""),
  "string-7": (s) => echo(s, tag),
  "string-70000": (s) => echo(s, tag.repeat(10000)),
  binary,
  tree,
  exception: refuse,
  void: (s) => s.call("ping"),
  oneway: (s) => oneway(s, tag + " one", 1),
  oneways: (s) => oneway(s, tag + " five", 5),
  unknown,
  pipelined,
  last: (s) => echo(s, tag + " last"),
};

async function main() {
  let session = null;
  for (const [name, call] of Object.entries(calls)) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error("no answer in time")), TIMEOUT);
    });
    try {
      session = session || new Session();
      await Promise.race([call(session), late]);
      console.log("ok", name);
    } catch (err) {
      console.log("fail", name, String(err).split("\n")[0]);
      if (session) session.end();
      session = null; // the next call has a connection of its own
    }
    clearTimeout(timer);
  }
  if (session) session.end();
}

main().then(() => process.exit(0));
