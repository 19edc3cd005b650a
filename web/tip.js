// The small label beside a token or a cell of the map.
import { byId } from "./dom.js";

const GAP = 6;

export function showTip(anchor, lines) {
  const tip = byId("tip");
  tip.replaceChildren(
    ...lines.map((line) => {
      const row = document.createElement("span");
      row.textContent = line;
      return row;
    }),
  );
  tip.hidden = false;
  // The first box: a token may be broken over two lines.
  const box = anchor.getClientRects()[0] ?? anchor.getBoundingClientRect();
  const left = Math.max(GAP, Math.min(box.left, innerWidth - tip.offsetWidth - GAP));
  const above = box.top - tip.offsetHeight - GAP;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > GAP ? above : box.bottom + GAP}px`;
}

export function hideTip() {
  byId("tip").hidden = true;
}

addEventListener("scroll", hideTip, { capture: true, passive: true });
addEventListener("blur", hideTip);
