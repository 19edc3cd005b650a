// Puts the page together: connection, conversation, composer, atlas, dialogs, keys.
import { Api } from "./api.js";
import { Atlas } from "./atlas.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { Conversation } from "./conversation.js";
import { announce, byId, el } from "./dom.js";
import { Focus } from "./focus.js";
import { startKeyboard } from "./keyboard.js";
import { Library } from "./library.js";
import { showCode } from "./code_dialog.js";
import { loadSettings } from "./settings.js";
import { Store } from "./store.js";
import { hideTip } from "./tip.js";
import { toast } from "./toast.js";

const WIDE = matchMedia("(min-width: 60rem)");
const OPENED = "dsmoe.conversation"; // of this tab, so that a reload shows it again

// Questions that the demo's model answers rightly at the page's settings (docs/page.md has the figures); they suit any other too.
const EXAMPLES = [
  { mode: "continue", name: "Add two numbers", text: "Add 49 + 38:" },
  { mode: "continue", name: "Run a program", text: "def count(n):\n    for i in range(n):\n        print(i)\n\ncount(4)\n#" },
  { mode: "continue", name: "Complete a record", text: '{"name": "Mia", "age": 34,' },
  { mode: "continue", name: "Multiply by ten", text: "def tenfold(x):\n    return 10 * x\n\nprint(tenfold(3), tenfold(7))\n#" },
];

const settings = loadSettings();
const api = new Api();
const focus = new Focus();

const connection = new Connection(api, { found, lost: () => composer.setReady(false), askKey, training: () => showWelcome() });
const store = new Store({
  told: (sentence) => toast(sentence, { stays: true, action: { name: "Conversations", run: () => library.show() } }),
  changed: (id) => {
    if (id === conversation.id) conversation.refresh();
    library.refresh();
  },
});
const conversation = new Conversation(api, store, focus, {
  settings,
  model: () => connection.model,
  busy: (isBusy) => {
    composer.setBusy(isBusy);
    showWelcome();
    composer.showContext();
    atlas.poll();
  },
  opened: () => {
    remember(conversation.id);
    showWelcome();
    composer.showContext();
  },
  export: (request) => showCode(request, api.key !== ""),
  failed: (error) => connection.trouble(error),
  askKey: () => askKey("The server did not accept this key."),
  changed: () => atlas.showSoon(),
});
const composer = new Composer({
  settings,
  model: () => connection.model,
  say: (text) => conversation.say(text),
  stop: () => conversation.stop(),
  count: async (text) => (await api.json("POST", "tokenize", { prompt: text }).catch(() => ({ count: 0 }))).count,
  used: () => conversation.turns.findLast((turn) => turn.mode === "chat" && turn.answer.contextUsed > 0)?.answer.contextUsed ?? 0,
  changed: (name) => (name === undefined || name === "markdown") && conversation.reshow(),
});
const library = new Library(store, {
  current: () => conversation.id,
  open: (id) => conversation.open(id),
  begin: newConversation,
  renamed: (record) => conversation.renamed(record),
});
const atlas = new Atlas(api, focus, {
  isBusy: () => conversation.isBusy,
  isOpen: () => !byId("atlas").hidden && connection.model !== null,
  trouble: (error) => (error ? connection.trouble(error) : connection.fine()),
  grown: () => showInspector(),
});

function found(model) {
  const isFirst = byId("model").textContent === "";
  byId("model").textContent = model.id;
  byId("model").title = model.max_model_len ? `Context of ${model.max_model_len.toLocaleString("en")} tokens` : "";
  document.title = `${model.id} · dsmoe`;
  if (isFirst && model.moe_layers) focus.set({ layers: model.moe_layers, row: Math.floor(model.moe_layers.length / 2) });
  // A model without a chat template can only continue text.
  const canChat = model.has_chat_template !== false;
  document.querySelector("#mode [value=chat]").disabled = !canChat;
  if (!canChat) settings.mode = "continue";
  if (model.max_model_len) settings.maxTokens = Math.min(settings.maxTokens, model.max_model_len);
  composer.show();
  composer.setReady(true);
  showExamples(canChat);
  conversation.showActions(); // what can be done depends on the model
  atlas.poll();
}

function showExamples(canChat) {
  byId("examples").replaceChildren(
    ...EXAMPLES.filter(({ mode }) => canChat || mode === "continue").map(({ mode, name, text }) =>
      el(
        "li",
        {},
        el(
          "button",
          {
            type: "button",
            class: "example",
            onclick: () => {
              composer.setMode(mode);
              composer.fill(text);
            },
          },
          el("span", { class: "example-name" }, name),
          el("span", { class: "example-text" }, text),
        ),
      ),
    ),
  );
}

function setAtlas(isOpen) {
  byId("atlas").hidden = !isOpen;
  document.body.classList.toggle("with-atlas", isOpen);
  byId("atlas-toggle").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) atlas.poll();
}

function newConversation({ keepsFocus = false } = {}) {
  conversation.clear();
  if (!keepsFocus) byId("prompt").focus();
  announce("New conversation");
}

function showWelcome() {
  byId("welcome").hidden = conversation.turns.length > 0 || connection.isTraining;
}

function remember(id) {
  try {
    if (id) sessionStorage.setItem(OPENED, id);
    else sessionStorage.removeItem(OPENED);
  } catch {
    // a reload then shows an empty page; the list has the conversation
  }
}

// What this tab showed before it was loaded again.
async function reopen() {
  await store.open();
  let id = null;
  try {
    id = sessionStorage.getItem(OPENED);
  } catch {
    // storage may be forbidden
  }
  if (id && conversation.turns.length === 0) await conversation.open(id);
}

function askKey(why) {
  byId("key-why").textContent = why;
  byId("key").value = "";
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

byId("key-form").addEventListener("submit", () => {
  api.useKey(byId("key").value.trim());
  connection.connect();
  if (conversation.turns.at(-1)?.answer.error?.kind === "key") conversation.again();
});
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
byId("key-open").addEventListener("click", () => askKey("Sent with every request to this server. Leave it empty to send none."));
byId("help").addEventListener("click", () => byId("help-dialog").showModal());
byId("new-chat").addEventListener("click", () => newConversation());
byId("atlas-toggle").addEventListener("click", () => setAtlas(byId("atlas").hidden));
byId("atlas-close").addEventListener("click", () => {
  setAtlas(false);
  byId("atlas-toggle").focus();
});
byId("colour-tokens").addEventListener("change", (event) => focus.set({ colours: event.target.checked }));
byId("number-tokens").addEventListener("change", (event) => {
  byId("log").classList.toggle("numbers", event.target.checked);
  byId("map").classList.toggle("figures", event.target.checked);
});
// The atlas opens when there is something to show; on a small screen, at the part that shows it.
let shown = null;
function showInspector() {
  if ((focus.tokenShown ?? focus.picked) && !WIDE.matches) byId("inspector").scrollIntoView({ block: "start" });
}
focus.addEventListener("change", () => {
  if (focus.tokenShown && byId("atlas").hidden) setAtlas(true);
  const looksAt = focus.tokenShown ?? focus.picked;
  if (looksAt !== shown) showInspector();
  shown = looksAt;
});

startKeyboard([
  { keys: "Enter", says: "Send" },
  { keys: "Shift Enter", says: "New line" },
  {
    keys: "Esc",
    says: "Stop the answer; clear the selection",
    run: () => {
      hideTip();
      if (conversation.isBusy) conversation.stop();
      else focus.clear();
    },
  },
  { keys: "Alt+N", says: "New conversation", run: () => newConversation() },
  { keys: "L", says: "List of conversations", run: () => library.show() },
  { keys: "/", says: "Go to the message box", run: () => byId("prompt").focus() },
  { keys: "E", says: "Show or hide the expert atlas", run: () => setAtlas(byId("atlas").hidden) },
  { keys: "R", says: "Regenerate the last answer", run: () => conversation.again() },
  { keys: "[", says: "Previous layer", run: () => focus.set({ row: focus.row - 1 }) },
  { keys: "]", says: "Next layer", run: () => focus.set({ row: focus.row + 1 }) },
  { keys: "C", says: "Colour tokens, or not", run: () => byId("colour-tokens").click() },
  { keys: "N", says: "Expert numbers below tokens, loads on the map", run: () => byId("number-tokens").click() },
  { keys: "?", says: "This list", run: () => byId("help-dialog").showModal() },
  { keys: "← →", says: "In an answer: from token to token" },
]);

setAtlas(WIDE.matches);
composer.setBusy(false);
if (WIDE.matches) byId("prompt").focus({ preventScroll: true }); // on a phone it would call up the keyboard
reopen();
connection.connect();
