// Finds the server and its model, says so when it cannot, and keeps trying.
import { byId, durationText } from "./dom.js";
import { showCurve } from "./loss_curve.js";

const RETRY_MS = [1500, 3000, 5000, 10000];

export class Connection {
  // hooks: { found(model), lost(), askKey(why), training() }
  constructor(api, hooks) {
    Object.assign(this, { api, hooks });
    this.model = null;
    this.failures = 0;
    this.isLoading = false;
    this.isTraining = false;
    this.timer = 0;
    byId("notice-action").addEventListener("click", () => (this.action ? this.action() : this.connect()));
  }

  async connect() {
    clearTimeout(this.timer);
    try {
      const { data } = await this.api.json("GET", "v1/models");
      this.model = data[0];
      this.failures = 0;
      this.#notice("");
      this.#showTraining(null);
      this.hooks.found(this.model);
    } catch (error) {
      this.trouble(error);
    }
  }

  // Any request's failure comes here; one that says the server is away starts the search.
  trouble(error) {
    if (error.kind === "key") {
      clearTimeout(this.timer);
      const why = this.api.key ? "The server did not accept this key." : "This server asks for a key.";
      this.#notice(why, "Enter key", () => this.hooks.askKey(why));
      if (!this.model) this.hooks.askKey(why);
      return;
    }
    if (error.kind !== "unreachable" && error.kind !== "unavailable" && this.model) return;
    this.hooks.lost();
    this.#notice(error.message, "Try now");
    this.isLoading = error.code === "loading";
    this.#followTraining();
    clearTimeout(this.timer);
    const wait = this.isLoading ? 0 : Math.min(this.failures, RETRY_MS.length - 1);
    ++this.failures;
    this.timer = setTimeout(() => this.connect(), RETRY_MS[wait]);
  }

  async #followTraining() {
    const training = this.isLoading ? await this.api.training() : null;
    this.#showTraining(this.isLoading ? training : null);
  }

  #showTraining(training) {
    this.isTraining = training !== null;
    byId("training").hidden = training === null;
    this.hooks.training();
    if (training === null) return;
    const { step, total, loss, seconds_left: left, curve = [] } = training;
    showCurve(byId("training-curve"), curve, total);
    Object.assign(byId("training-bar"), { value: step, max: total });
    const count = (number) => number.toLocaleString("en");
    byId("training-text").textContent =
      step < total
        ? `Training: step ${count(step)} of ${count(total)}, loss ${loss.toFixed(2)}, about ${durationText(left)} left`
        : `Trained ${count(total)} steps; measuring what it learned`;
  }

  // A request went through.
  fine() {
    if (this.failures > 0) this.connect();
  }

  #notice(text, name = "", action = null) {
    byId("notice").hidden = text === "";
    // An alert is read out when its text changes, not each time the same trouble is met again.
    if (byId("notice-text").textContent !== text) byId("notice-text").textContent = text;
    byId("notice-action").hidden = name === "";
    byId("notice-action").textContent = name;
    this.action = action;
  }
}
