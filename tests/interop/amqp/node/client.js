// Runs commands for rhea: one JSON object per line of standard input, one reply per line of
// standard output. See ../clients.py for the commands and ../values.py for the form of values.
"use strict";

const readline = require("node:readline");
const rhea = require("rhea");
const WebSocket = require("ws");

const { types, message: amqpMessage } = rhea;
const url = new URL(process.argv[2]);

function transport(container) {
  if (url.protocol === "amqp:") return { host: url.hostname, port: Number(url.port) };
  const connect = container.websocket_connect(WebSocket);
  return { connection_details: connect(url.href, ["amqp"], {}) };
}

async function run(asked) {
  const container = rhea.create_container();
  const connection = container.connect({
    ...transport(container),
    username: "anonymous", // without a user name, rhea does not begin with SASL
    reconnect: false,
    max_frame_size: asked.frame_bytes,
  });
  try {
    return await new Promise((resolve, reject) => {
      for (const name of ["connection_error", "session_error", "sender_error", "receiver_error"]) {
        connection.on(name, (context) => {
          const { error } = context[name.split("_")[0]];
          reject(new Error(`${error.condition}: ${error.description}`));
        });
      }
      connection.on("disconnected", (context) => reject(context.error ?? new Error("cut off")));
      setTimeout(() => reject(new Error(`${asked.verb} took more than 60 s`)), 60_000).unref();
      if (asked.verb === "send") send(connection, asked, resolve);
      else if (asked.verb === "receive") receive(connection, asked, resolve);
      else if (asked.verb === "manage") manage(connection, asked, resolve);
      else reject(new Error(`no verb ${asked.verb}`));
    });
  } finally {
    connection.close();
  }
}

function send(connection, asked, resolve) {
  const sender = connection.open_sender({
    target: { address: asked.address },
    snd_settle_mode: asked.settled ? 1 : 0,
    treat_modified_as_released: false,
  });
  const outcomes = [];
  let sent = 0;
  const done = () => {
    if (outcomes.length === asked.messages.length) {
      sender.on("sender_close", () => resolve({ outcomes }));
      sender.close();
    }
  };
  sender.on("sendable", () => {
    while (sender.sendable() && sent < asked.messages.length) {
      sender.send(decodeMessage(asked.messages[sent]));
      sent += 1;
      if (asked.settled) outcomes.push("settled");
    }
    if (asked.settled) done();
  });
  for (const name of ["accepted", "rejected", "released", "modified"]) {
    sender.on(name, () => {
      outcomes.push(name);
      done();
    });
  }
}

function manage(connection, asked, resolve) {
  const replies = [];
  const receiver = connection.open_receiver({
    source: { address: "/management" },
    target: { address: "replies" },
  });
  const sender = connection.open_sender("/management");
  let sent = 0;
  sender.on("sendable", () => {
    for (; sender.sendable() && sent < asked.requests.length; sent += 1) {
      const [method, path, body] = asked.requests[sent];
      sender.send({ subject: method, to: path, reply_to: "replies", message_id: sent, body });
    }
  });
  receiver.on("message", ({ message }) => {
    const body = message.body.typecode === 0x75 ? message.body.content : message.body;
    replies[message.correlation_id] = [message.subject, JSON.parse(body.toString())];
    if (Object.keys(replies).length === asked.requests.length) resolve({ replies });
  });
}

function receive(connection, asked, resolve) {
  const filter = asked.selector ? rhea.filter.selector(asked.selector) : undefined;
  const receiver = connection.open_receiver({
    source: { address: asked.address, filter },
    snd_settle_mode: asked.settled ? 1 : 0,
    rcv_settle_mode: asked.second ? 1 : 0,
    credit_window: 0,
    autoaccept: false,
    autosettle: !asked.second,
  });
  const messages = [];
  let unsettled = 0;
  let isDrained = false;
  const done = () => {
    if (messages.length < asked.count || unsettled > 0) return;
    if (asked.drain && !isDrained) {
      if (!receiver.drain) {
        receiver.drain = true;
        receiver.add_credit(1);
      }
      return;
    }
    receiver.on("receiver_close", () => resolve({ messages, drained: isDrained }));
    receiver.close();
  };
  receiver.on("receiver_open", () => {
    receiver.add_credit(Math.max(asked.credit ?? 0, asked.count));
    done();
  });
  receiver.on("message", ({ message, delivery }) => {
    messages.push(encodeMessage(message));
    if (asked.second) unsettled += 1;
    settle(delivery, asked);
    done();
  });
  receiver.on("settled", ({ delivery }) => {
    if (asked.second) {
      unsettled -= 1;
      delivery.update(true);
      done();
    }
  });
  receiver.on("receiver_drained", () => {
    isDrained = true;
    done();
  });
}

function settle(delivery, asked) {
  const isSettled = !asked.second;
  const outcomes = {
    accept: () => amqpMessage.accepted(),
    reject: () =>
      amqpMessage.rejected({ error: { condition: "test:bad", description: "not wanted" } }),
    release: () => amqpMessage.released(),
    modify: () =>
      amqpMessage.modified({
        delivery_failed: asked.failed ?? false,
        undeliverable_here: asked.undeliverable ?? false,
        message_annotations: decodeFields(asked.annotations ?? []),
      }),
  };
  const outcome = outcomes[asked.outcome ?? "accept"];
  if (outcome) delivery.update(isSettled, outcome().described());
}

// ---- Messages

const TYPED_PROPERTIES = new Set(["message_id", "correlation_id"]);
const PROPERTIES = [
  ...["message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type"],
  ...["content_encoding", "absolute_expiry_time", "creation_time", "group_id", "group_sequence"],
  "reply_to_group_id",
];

function decodeMessage(fields) {
  const message = { ...fields.header };
  if (fields.annotations) message.message_annotations = decodeFields(fields.annotations);
  for (const [name, value] of Object.entries(fields.properties ?? {})) {
    const typed = decode(value);
    message[name] = TYPED_PROPERTIES.has(name) && value[0] === "uuid" ? unhex(value[1]) : typed.value;
  }
  if (fields.application_properties) {
    message.application_properties = decodeFields(fields.application_properties);
  }
  const [section, ...parts] = fields.body;
  if (section === "data") message.body = amqpMessage.data_sections(parts.map(unhex));
  else if (section === "sequence") {
    message.body = amqpMessage.sequence_sections(parts.map((list) => list.map(decode)));
  } else message.body = decode(parts[0]);
  return message;
}

function decodeFields(pairs) {
  return Object.fromEntries(pairs.map(([key, value]) => [key[1], decode(value)]));
}

function encodeMessage(message) {
  const fields = {
    header: {
      durable: message.durable ?? false,
      priority: message.priority ?? 4,
      ttl: message.ttl ?? 0,
      first_acquirer: message.first_acquirer ?? false,
      delivery_count: message.delivery_count ?? 0,
    },
    annotations: encodeFields(message.message_annotations),
    application_properties: encodeFields(message.application_properties),
    properties: {},
  };
  for (const name of PROPERTIES) {
    if (message[name] !== undefined) fields.properties[name] = encode(message[name]);
  }
  const { body } = message;
  if (body?.typecode === 0x75 || body?.typecode === 0x76) {
    const parts = body.multiple ? body.content : [body.content];
    fields.body =
      body.typecode === 0x75
        ? ["data", ...parts.map((octets) => octets.toString("hex"))]
        : ["sequence", ...parts.map((list) => list.map(encode))];
  } else fields.body = ["value", encode(body)];
  return fields;
}

function encodeFields(fields) {
  return Object.entries(fields ?? {}).map(([key, value]) => [["string", key], encode(value)]);
}

// ---- Values

function unhex(text) {
  return Buffer.from(text, "hex");
}

function wide(text) {
  const octets = Buffer.alloc(8);
  octets.writeBigInt64BE(BigInt.asIntN(64, BigInt(text)));
  return octets;
}

const DECODERS = {
  null: () => types.wrap(null),
  boolean: (value) => types.wrap_boolean(value),
  ubyte: (text) => types.wrap_ubyte(Number(text)),
  ushort: (text) => types.wrap_ushort(Number(text)),
  uint: (text) => types.wrap_uint(Number(text)),
  ulong: (text) => types.wrap_ulong(wide(text)),
  byte: (text) => types.wrap_byte(Number(text)),
  short: (text) => types.wrap_short(Number(text)),
  int: (text) => types.wrap_int(Number(text)),
  long: (text) => types.wrap_long(wide(text)),
  float: (text) => types.wrap_float(unhex(text).readFloatBE()),
  double: (text) => types.wrap_double(unhex(text).readDoubleBE()),
  decimal32: (text) => types.Decimal32(unhex(text)),
  decimal64: (text) => types.Decimal64(unhex(text)),
  decimal128: (text) => types.Decimal128(unhex(text)),
  char: (text) => types.wrap_char(Number(text)),
  timestamp: (text) => types.wrap_timestamp(Number(text)),
  uuid: (text) => types.wrap_uuid(unhex(text)),
  binary: (text) => types.wrap_binary(unhex(text)),
  string: (text) => types.wrap_string(text),
  symbol: (text) => types.wrap_symbol(text),
  list: (values) => types.wrap_list(values.map(decode)),
  map: (pairs) => types.Map32(pairs.flatMap(([key, value]) => [decode(key), decode(value)])),
  array: (element, values) =>
    types.wrap_array(
      values.map((value) => decode([element, value]).value),
      ELEMENTS[element],
    ),
};

// rhea encodes the elements of an array with the constructor that it is given.
const ELEMENTS = {
  boolean: 0x56, ubyte: 0x50, ushort: 0x60, uint: 0x70, ulong: 0x80, byte: 0x51, short: 0x61,
  int: 0x71, long: 0x81, float: 0x72, double: 0x82, decimal32: 0x74, decimal64: 0x84,
  decimal128: 0x94, char: 0x73, timestamp: 0x83, uuid: 0x98, binary: 0xb0, string: 0xb1,
  symbol: 0xb3,
};

function decode([type, ...arguments_]) {
  return DECODERS[type](...arguments_);
}

// rhea hands out JavaScript's own values: all numbers are "number", and what fits no number is a
// buffer.
function encode(value) {
  if (value === null || value === undefined) return ["null", null];
  if (typeof value === "boolean") return ["boolean", value];
  if (typeof value === "number") return ["number", value];
  if (typeof value === "string") return ["string", value];
  if (value instanceof Date) return ["timestamp", String(value.getTime())];
  if (Buffer.isBuffer(value)) return ["binary", value.toString("hex")];
  if (Array.isArray(value)) return ["list", value.map(encode)];
  return ["map", encodeFields(value)];
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const reply = await run(JSON.parse(line)).catch((error) => ({ error: String(error.message) }));
    process.stdout.write(`${JSON.stringify(reply)}\n`);
  }
}

main();
