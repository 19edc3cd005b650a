// Arrow keys in a grid: one stop for Tab, arrows, Home and End inside (the roving tabindex of the ARIA practices).

// `cells` are the focusable ones, row by row: [[node, ...], ...]. Returns { enter } to make another cell the stop.
export function gridNavigation(container, cells) {
  let current = null;
  const places = new Map();
  cells.forEach((row, y) => row.forEach((node, x) => places.set(node, [y, x])));

  function enter(node) {
    if (current) current.tabIndex = -1;
    current = node;
    if (current) current.tabIndex = 0;
  }

  function target(key, [y, x]) {
    const clamp = (v, size) => Math.max(0, Math.min(size - 1, v));
    const row = { ArrowUp: y - 1, ArrowDown: y + 1 }[key];
    if (row !== undefined) {
      const to = cells[clamp(row, cells.length)];
      return to[clamp(x, to.length)];
    }
    const column = { ArrowLeft: x - 1, ArrowRight: x + 1, Home: 0, End: cells[y].length - 1 }[key];
    return column === undefined ? undefined : cells[y][clamp(column, cells[y].length)];
  }

  for (const node of places.keys()) {
    node.tabIndex = -1;
    node.addEventListener("focus", () => enter(node));
  }
  enter(cells[0]?.[0] ?? null);
  container.onkeydown = (event) => {
    const place = places.get(event.target);
    const to = place && !event.altKey && !event.ctrlKey && !event.metaKey ? target(event.key, place) : undefined;
    if (!to) return;
    event.preventDefault();
    enter(to);
    to.focus();
  };
  return { enter };
}
