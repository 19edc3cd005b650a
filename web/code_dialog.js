// The dialog that shows a request as curl or Python, to be copied.
import { byId, copyText } from "./dom.js";
import { curlOf, pythonProgramOf } from "./request_code.js";

const ROOT = new URL("../", import.meta.url).href;
let shown = null; // { request, hasKey }

function fill() {
  const kind = document.querySelector("#code-kind input:checked").value;
  const { request, hasKey } = shown;
  byId("code-text").textContent = kind === "curl" ? curlOf(request, ROOT, hasKey) : pythonProgramOf(request, ROOT, hasKey);
}

export function showCode(request, hasKey) {
  shown = { request, hasKey };
  fill();
  byId("code-dialog").showModal();
}

byId("code-kind").addEventListener("change", fill);
byId("code-copy").addEventListener("click", () => copyText(byId("code-text").textContent, byId("code-copy"), byId("code-text")));
