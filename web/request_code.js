// A request as something to run elsewhere: a curl command, or Python with the OpenAI SDK. Never with a key in it.
const PAGE_ONLY = ["return_routed_experts", "return_routed_gates", "logprobs", "top_logprobs", "stream_options"];
// Parameters of the SDK; everything else goes through extra_body.
const SDK = [
  "model", "messages", "prompt", "stream", "temperature", "top_p", "max_tokens", "seed", "stop", "presence_penalty", "frequency_penalty",
];

// What the page asks for on top, to draw experts with, is left out: it does not change the answer.
const plainBody = (body) => Object.fromEntries(Object.entries(body).filter(([name]) => !PAGE_ONLY.includes(name) && name !== "stream"));

const shellWord = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

// request: { path, body }; root: the server's address, with a slash at its end.
export function curlOf({ path, body }, root, hasKey) {
  const lines = [`curl ${shellWord(`${root}${path}`)}`, `-H 'Content-Type: application/json'`];
  if (hasKey) lines.push(`-H "Authorization: Bearer $DSMOE_API_KEY"`);
  lines.push(`-d ${shellWord(JSON.stringify(plainBody(body), null, 1))}`);
  return lines.join(" \\\n  ");
}

// JSON's strings and numbers are Python's too; its words are not.
function pythonOf(value, indent) {
  const deeper = `${indent}    `;
  if (Array.isArray(value)) return `[${value.map((one) => `\n${deeper}${pythonOf(one, deeper)},`).join("")}\n${indent}]`;
  if (typeof value === "object" && value !== null) {
    return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${pythonOf(one, deeper)}`).join(", ")}}`;
  }
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  return JSON.stringify(value);
}

export function pythonProgramOf({ path, body }, root, hasKey) {
  const plain = plainBody(body);
  const isChat = path.includes("chat");
  const named = Object.entries(plain).filter(([name]) => SDK.includes(name));
  const extra = Object.fromEntries(Object.entries(plain).filter(([name]) => !SDK.includes(name)));
  const parameters = named.map(([name, value]) => `    ${name}=${pythonOf(value, "    ")},`);
  if (Object.keys(extra).length > 0) parameters.push(`    extra_body=${pythonOf(extra, "    ")},`);
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${root}v1`)}, api_key=${hasKey ? 'os.environ["DSMOE_API_KEY"]' : '"none"'})`,
    `answer = client.${isChat ? "chat.completions" : "completions"}.create(`,
    ...parameters,
    ")",
    `print(answer.choices[0].${isChat ? "message.content" : "text"})`,
    "",
  ].join("\n");
}
