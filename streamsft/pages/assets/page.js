"use strict";
// The theme: that of the system, until the button chooses another one.
window.page = (() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const listeners = [];
  let chosen = null;

  const dark = () => (chosen === null ? system.matches : chosen === "dark");

  function show() {
    if (chosen === null) root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", chosen);
    button.textContent = dark() ? "Light theme" : "Dark theme";
    listeners.forEach((listener) => listener());
  }

  button.addEventListener("click", () => {
    chosen = dark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  show();
  return {
    dark,
    onTheme: (listener) => listeners.push(listener),
    data: JSON.parse(document.getElementById("data").textContent),
    css: (name) => getComputedStyle(root).getPropertyValue(name).trim(),
  };
})();
