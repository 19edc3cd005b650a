// The list of conversations: open, rename, export, import, delete with undo.
import { MAX_FILE_BYTES, exportText, importText } from "./archive.js";
import { announce, byId, el, plural } from "./dom.js";
import { toast } from "./toast.js";

const MAX_TITLE = 200;

function whenText(time) {
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday
    ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : date.toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" });
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const fileName = (title) => `dsmoe ${title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 40) || "conversation"}.json`;

export class Library {
  // hooks: { current(), open(id), begin(), renamed(record) }
  constructor(store, hooks) {
    Object.assign(this, { store, hooks });
    this.dialog = byId("library");
    this.list = byId("library-list");
    byId("library-open").addEventListener("click", () => this.show());
    byId("library-new").addEventListener("click", () => {
      this.dialog.close();
      hooks.begin();
    });
    byId("library-close").addEventListener("click", () => this.dialog.close());
    byId("library-export").addEventListener("click", () => this.#exportAll());
    byId("library-import").addEventListener("click", () => byId("library-file").click());
    byId("library-file").addEventListener("change", () => this.#import());
    // A click beside the panel closes it, as in any drawer.
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
  }

  async show() {
    if (!this.dialog.open) this.dialog.showModal();
    await this.refresh();
  }

  // `focusOn`: the conversation whose name takes the keyboard; without, it stays where it is.
  async refresh(focusOn = null) {
    if (!this.dialog.open) return;
    const records = await this.store.list();
    byId("library-empty").hidden = records.length > 0;
    byId("library-export").disabled = records.length === 0;
    this.list.replaceChildren(...records.map((record) => this.#row(record)));
    if (focusOn) this.list.querySelector(`[data-id="${focusOn}"] .library-name`)?.focus();
  }

  #row(record) {
    const isCurrent = record.id === this.hooks.current();
    const button = (name, run) =>
      el("button", { type: "button", class: "quiet small", "aria-label": `${name}: ${record.title}`, onclick: run }, name);
    const name = el(
      "button",
      { type: "button", class: "library-name", "aria-current": isCurrent ? "true" : null, onclick: () => this.#open(record) },
      el("span", { class: "library-title" }, record.title || "Untitled"),
      el("span", { class: "library-when" }, whenText(record.changed)),
    );
    const row = el("li", { "data-id": record.id, class: isCurrent ? "current" : null }, name);
    row.append(
      el(
        "span",
        { class: "library-actions" },
        button("Rename", () => this.#rename(row, record)),
        button("Export", () => this.#export(record)),
        button("Delete", () => this.#delete(row, record)),
      ),
    );
    return row;
  }

  async #open(record) {
    if (await this.hooks.open(record.id)) this.dialog.close();
    else this.refresh();
  }

  #rename(row, record) {
    const box = el("input", { type: "text", maxlength: MAX_TITLE, "aria-label": "New name" });
    box.value = record.title;
    const end = async (title) => {
      box.removeEventListener("blur", keep);
      if (title !== null && title.trim() !== "" && title !== record.title) {
        await this.store.change(record.id, { title: title.trim() });
        this.hooks.renamed({ ...record, title: title.trim() });
      }
      await this.refresh(record.id);
    };
    const keep = () => end(box.value);
    box.addEventListener("blur", keep);
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter" ? box.value : null);
    });
    row.replaceChildren(box);
    box.select();
  }

  async #delete(row, record) {
    const next = (row.nextElementSibling ?? row.previousElementSibling)?.dataset.id ?? null;
    await this.store.change(record.id, { deleted: Date.now() });
    if (record.id === this.hooks.current()) this.hooks.begin({ keepsFocus: true });
    await this.refresh(next);
    if (!next) byId("library-new").focus();
    const undo = async () => {
      await this.store.change(record.id, { deleted: 0 });
      await this.refresh(record.id);
      announce("The conversation is back");
    };
    toast(`Deleted “${record.title}”.`, { action: { name: "Undo", run: undo } });
  }

  async #export(record) {
    const found = await this.store.read(record.id);
    if (found) download(fileName(record.title), exportText([found]));
  }

  async #exportAll() {
    const sources = [];
    for (const { id } of await this.store.list()) sources.push(await this.store.read(id));
    download(fileName("conversations"), exportText(sources.filter(Boolean)));
  }

  async #import() {
    const [file] = byId("library-file").files;
    byId("library-file").value = ""; // the same file may be chosen again
    if (!file) return;
    const { sources, refusal } = importText(file.size > MAX_FILE_BYTES ? null : await file.text());
    if (refusal) return void toast(refusal, { stays: true });
    let kept = 0;
    for (const { conversation, turns } of sources) if (await this.store.write(conversation, turns)) ++kept;
    await this.refresh(sources[0].conversation.id);
    const all = kept === sources.length;
    toast(all ? `Imported ${plural(kept, "conversation")}.` : `Imported ${kept} of ${sources.length}: the store of conversations is full.`, { stays: !all });
  }
}
