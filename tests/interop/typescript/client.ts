// Publishes and reads with openapi-fetch and the types that openapi-typescript generated from the
// served OpenAPI document. Prints the messages that it read as one JSON object; exits with 1 if any
// result is wrong.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Message = components["schemas"]["Message"];

const topic = "from-typescript";
const client = createClient<paths, "application/json" | "application/problem+json">({
  baseUrl: process.argv[2],
});

function expect<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) {
    throw new Error(`${answer.response.status}: ${JSON.stringify(answer.error)}`);
  }
  return answer.data;
}

async function publish(): Promise<void> {
  expect(await client.PUT("/v1/topics/{topic}", { params: { path: { topic } }, body: { queues: 2 } }));
  const stored = expect(
    await client.POST("/v1/topics/{topic}/messages", {
      params: { path: { topic } },
      body: {
        messages: [
          { body: "grüße", key: "k", queue: 1, properties: { region: "EU" } },
          { body_base64: "AP8=", queue: 1 },
        ],
      },
    }),
  );
  if (!stored.durable || stored.results[1]?.offset !== 1) throw new Error(JSON.stringify(stored));
}

async function pull(): Promise<{ messages: Message[]; next_offset: number }> {
  const path = { topic, queue: 1 };
  const refused = await client.GET("/v1/topics/{topic}/queues/{queue}/messages", {
    params: { path, query: { offset: 99 } },
  });
  if (refused.error?.type !== "/problems/offset-beyond-end" || refused.error.max_offset !== 2) {
    throw new Error(JSON.stringify(refused.error));
  }
  return expect(
    await client.GET("/v1/topics/{topic}/queues/{queue}/messages", {
      params: { path, query: { from: "earliest", wait_ms: 1000 } },
    }),
  );
}

async function lease(): Promise<number> {
  const path = { group: "typescript" };
  expect(await client.PUT("/v1/groups/{group}", { params: { path }, body: { topics: { [topic]: {} } } }));
  const received = expect(
    await client.POST("/v1/groups/{group}/receive", { params: { path }, body: { member: "m" } }),
  );
  const receipts = received.messages.map((message) => message.receipt ?? "");
  const done = expect(
    await client.POST("/v1/groups/{group}/ack", { params: { path }, body: { receipts } }),
  );
  if (!done.results.every((result) => result.status === "done")) throw new Error(JSON.stringify(done));
  return receipts.length;
}

await publish();
const { messages, next_offset } = await pull();
console.log(JSON.stringify({ pulled: messages, next_offset, leased: await lease() }));
