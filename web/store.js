// Conversations in this browser (IndexedDB): a record per conversation and one per turn, so that a growing answer writes
// only itself, and two tabs that talk in one conversation add turns to it instead of overwriting each other's.
import { bytesOf, lightRecordOf } from "./answer_record.js";

const MAX_BYTES = 64 << 20; // of all conversations; enough for some thousand answers with their experts
const UNDO_MS = 3600000; // a conversation deleted longer ago is gone for good

const SPACE_WORDS = "Delete some, or export them first.";
export const FULL_WORDS = `The store of conversations is full: what is new here stays only until this page is closed. ${SPACE_WORDS}`;
export const LIGHT_WORDS = `The store of conversations is nearly full: the text of this answer is kept, its experts are not. ${SPACE_WORDS}`;
export const CLOSED_WORDS = "This browser lets the page keep nothing: conversations are lost when it is closed.";

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
const committed = (transaction) =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error("aborted"));
  });

const turnBytes = (record) => 128 + 2 * record.text.length + bytesOf(record.answer) + bytesOf(record.rival);

export class Store {
  // told(sentence): what the reader must know, once for each kind. changed(conversation): another tab wrote there.
  constructor({ name = "dsmoe", maxBytes = MAX_BYTES, told, changed }) {
    Object.assign(this, { name, maxBytes, told, changed });
    this.database = null;
    this.said = new Set();
    this.sizes = new Map(); // turn -> bytes
    this.total = 0;
    this.queue = Promise.resolve(); // writes go one after the other
  }

  async open() {
    try {
      const request = indexedDB.open(this.name, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore("conversations", { keyPath: "id" });
        const turns = request.result.createObjectStore("turns", { keyPath: "id" });
        turns.createIndex("conversation", "conversation");
        turns.createIndex("bytes", "bytes");
      };
      this.database = await done(request);
      this.database.onversionchange = () => this.database.close();
      this.channel = new BroadcastChannel(`dsmoe.${this.name}`);
      this.channel.onmessage = ({ data }) => this.#heard(data);
      await this.#purge();
      await this.#measure();
    } catch {
      this.database = null;
      this.#say(CLOSED_WORDS);
    }
  }

  get isOpen() {
    return this.database !== null;
  }

  close() {
    this.channel?.close();
    this.database?.close();
  }

  #say(words) {
    if (this.said.has(words)) return;
    this.said.add(words);
    this.told(words);
  }

  #heard({ conversation, grows }) {
    this.total += grows;
    this.changed(conversation);
  }

  async #measure() {
    const sizes = new Map();
    const index = this.database.transaction("turns").objectStore("turns").index("bytes");
    await new Promise((resolve, reject) => {
      const request = index.openKeyCursor();
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return resolve();
        sizes.set(cursor.primaryKey, cursor.key);
        return cursor.continue();
      };
    });
    this.sizes = sizes;
    this.total = [...sizes.values()].reduce((sum, bytes) => sum + bytes, 0);
  }

  async #purge() {
    const gone = (await this.#all()).filter(({ deleted }) => deleted && deleted < Date.now() - UNDO_MS);
    for (const { id } of gone) await this.#erase(id);
  }

  async #erase(conversation) {
    const transaction = this.database.transaction(["conversations", "turns"], "readwrite");
    transaction.objectStore("conversations").delete(conversation);
    const turns = transaction.objectStore("turns");
    for (const key of await done(turns.index("conversation").getAllKeys(conversation))) turns.delete(key);
    await committed(transaction);
  }

  #one(id) {
    return done(this.database.transaction("conversations").objectStore("conversations").get(id));
  }

  #all() {
    return done(this.database.transaction("conversations").objectStore("conversations").getAll());
  }

  // Conversations that are not deleted, the last changed first.
  async list() {
    if (!this.isOpen) return [];
    await this.queue;
    return (await this.#all()).filter(({ deleted }) => !deleted).sort((a, b) => b.changed - a.changed);
  }

  // { conversation, turns }, or null. Deleted ones are found as well.
  async read(id) {
    if (!this.isOpen) return null;
    await this.queue;
    const transaction = this.database.transaction(["conversations", "turns"]);
    const conversation = await done(transaction.objectStore("conversations").get(id));
    if (!conversation) return null;
    return { conversation, turns: await done(transaction.objectStore("turns").index("conversation").getAll(id)) };
  }

  // Writes the conversation's own record and these turns; `all()` are its turns for the case that another tab has let
  // it go meanwhile. Returns whether everything was kept.
  write(conversation, turns, all = () => turns) {
    const next = this.queue.then(() => this.#write(conversation, turns, all));
    this.queue = next.catch(() => {});
    return next;
  }

  async #write(conversation, changed, all) {
    if (!this.isOpen) return false;
    const turns = (await this.#one(conversation.id)) ? changed : all();
    const light = (turn) => ({ ...turn, answer: turn.answer && lightRecordOf(turn.answer), rival: turn.rival && lightRecordOf(turn.rival) });
    const sized = (records) => records.map((record) => ({ ...record, conversation: conversation.id, bytes: turnBytes(record) }));
    for (const [records, words] of [[sized(turns), null], [sized(turns.map(light)), LIGHT_WORDS]]) {
      if (!(await this.#put(conversation, records)) && !((await this.#forgetDeleted()) && (await this.#put(conversation, records)))) continue;
      if (words) this.#say(words);
      else if (turns.length > 0) this.said.clear(); // there is room again
      return true;
    }
    this.#say(FULL_WORDS);
    return false;
  }

  async #put(conversation, records) {
    const sizeOf = ({ id }) => this.sizes.get(id) ?? 0;
    const grows = records.reduce((sum, record) => sum + record.bytes - sizeOf(record), 0);
    if (grows > 0 && this.total + grows > this.maxBytes) return false;
    try {
      const transaction = this.database.transaction(["conversations", "turns"], "readwrite");
      const ended = committed(transaction);
      transaction.objectStore("conversations").put(conversation);
      for (const record of records) transaction.objectStore("turns").put(record);
      await ended;
    } catch {
      return false; // the browser's own limit
    }
    this.total += grows;
    for (const record of records) this.sizes.set(record.id, record.bytes);
    this.channel.postMessage({ conversation: conversation.id, grows });
    return true;
  }

  // Changes fields of a conversation's own record.
  async change(id, fields) {
    const found = await this.read(id);
    if (!found) return;
    await this.write({ ...found.conversation, ...fields }, []);
  }

  // A store that is full cannot keep what was deleted until it is sure that no one wants it back.
  async #forgetDeleted() {
    const gone = (await this.#all()).filter(({ deleted }) => deleted);
    for (const { id } of gone) await this.#erase(id);
    await this.#measure();
    return gone.length > 0;
  }
}
