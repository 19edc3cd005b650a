// Sets the theme before the first paint, and changes it: as the system, light, dark. A plain script: modules come too late.
(() => {
  const ORDER = ["system", "light", "dark"];
  const NAMES = { system: "as the system", light: "light", dark: "dark" };
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function remembered() {
    try {
      const theme = localStorage.getItem("dsmoe.theme");
      return ORDER.includes(theme) ? theme : "system";
    } catch {
      return "system"; // storage may be forbidden; the page works without
    }
  }

  let chosen = remembered();
  function apply() {
    const isDark = chosen === "dark" || (chosen === "system" && dark.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) {
      button.setAttribute("aria-label", `Theme: ${NAMES[chosen]}`);
      button.title = `Theme: ${NAMES[chosen]}`;
    }
  }

  dark.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      chosen = ORDER[(ORDER.indexOf(chosen) + 1) % ORDER.length];
      try {
        localStorage.setItem("dsmoe.theme", chosen);
      } catch {
        // lasts until the page is closed, then
      }
      apply();
    });
    apply();
  });
  apply();
})();
