// Reads a topic's events with a third-party EventSource. It loses its connection when the broker
// stops, and continues after the last event once the broker is back. Prints each body on a line.
import { EventSource } from "eventsource";

const [url, topic, count] = process.argv.slice(2);
const source = new EventSource(`${url}/v1/topics/${topic}/messages?from=earliest`);
let left = Number(count);

source.addEventListener("message", (event) => {
  console.log(JSON.parse(event.data).body);
  left -= 1;
  if (left === 0) source.close();
});
source.addEventListener("problem", (event) => {
  console.error(event.data);
  process.exit(1);
});
