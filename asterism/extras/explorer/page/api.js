// Questions to the server. Work that takes longer is asked for again until it is ready.
import { complain } from "./dom.js";

const PAUSE = 700; // milliseconds

export const address = (path, parameters = {}) => {
  const text = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value != null)).toString();
  return `api/${path}${text ? `?${text}` : ""}`;
};

export const thumbnail = (row, size = 128) => address("image/thumbnail", { row, size });

export class Refusal extends Error {}

async function ask(path, parameters, options = {}, waiting) {
  for (;;) {
    const response = await fetch(address(path, parameters), options);
    if (response.status === 202) {
      waiting?.();
      await new Promise(done => setTimeout(done, PAUSE));
      continue;
    }
    if (response.ok) return response;
    let sentence = `the server answered ${response.status}`;
    try { sentence = (await response.json()).error; } catch { /* not JSON: the status is all there is */ }
    throw new Refusal(sentence);
  }
}

export const get = async (path, parameters, waiting) => (await ask(path, parameters, {}, waiting)).json();
export const getBytes = async (path, parameters, waiting) => (await ask(path, parameters, {}, waiting)).arrayBuffer();
export const getResponse = (path, parameters) => ask(path, parameters);
export const post = (path, body, parameters, waiting) =>
  ask(path, parameters, body instanceof Blob
    ? { method: "POST", body }
    : { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }, waiting);

// Runs something that asks the server; a refusal is shown, and a closed server is named.
export async function trying(work) {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Refusal) complain(error.message);
    else if (error instanceof TypeError && /fetch/i.test(error.message)) complain("The explorer does not answer; is it still running?");
    else throw error;
  }
}
