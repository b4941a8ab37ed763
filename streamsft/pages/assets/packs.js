"use strict";
// Lays the tokens of packs out, tells of the one under the pointer or the keys, and searches the text.
(() => {
  const status = document.getElementById("token");
  const count = document.getElementById("count");
  const documents = [];
  let here = null;
  let hits = [];
  let at = -1;

  function visible(text) {
    return text.replace(/\n/g, "↵\n").replace(/\t/g, "⇥\t");
  }

  function lay(document_, box) {
    const article = document.createElement("article");
    const heading = document.createElement("h3");
    const supervised = document_.labelled.reduce((sum, one) => sum + one, 0);
    const size = document.createElement("small");
    size.textContent = ` ${document_.ids.length.toLocaleString("en")} tokens, ${supervised.toLocaleString("en")} supervised`;
    heading.append(document_.name, size);
    const tokens = document.createElement("div");
    tokens.className = "tokens";
    tokens.tabIndex = 0;
    tokens.setAttribute("role", "group");
    tokens.setAttribute("aria-label", document_.name);
    const control = new Set(document_.control);
    document_.texts.forEach((text, number) => {
      const span = document.createElement("span");
      span.textContent = visible(text);
      span.className = (document_.labelled[number] ? "y" : "") + (control.has(number) ? " c" : "");
      tokens.append(span);
    });
    article.append(heading, tokens);
    box.append(article);
    const entry = { ...document_, tokens, text: document_.texts.join("").toLowerCase() };
    documents.push(entry);
    const of = (event) => [...tokens.children].indexOf(event.target);
    tokens.addEventListener("mouseover", (event) => of(event) >= 0 && tell(entry, of(event)));
    tokens.addEventListener("click", (event) => of(event) >= 0 && go(entry, of(event)));
    tokens.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
      if (!(event.key in moves)) return;
      event.preventDefault();
      const last = entry.ids.length - 1;
      const now = here && here.entry === entry ? here.number : -1;
      go(entry, Math.min(last, Math.max(0, now + moves[event.key])));
    });
  }

  function tell(entry, number) {
    const kind = entry.labelled[number] ? "supervised" : "not supervised";
    status.textContent = `${entry.name} · position ${entry.start + number} · id ${entry.ids[number]} · ${kind} · ` +
      JSON.stringify(entry.texts[number]);
  }

  function go(entry, number) {
    if (here) here.entry.tokens.children[here.number].classList.remove("here");
    here = { entry, number };
    const span = entry.tokens.children[number];
    span.classList.add("here");
    span.scrollIntoView({ block: "nearest" });
    tell(entry, number);
  }

  // Tokens that a search finds: a hit is the tokens from its first to its last character.
  function search(text) {
    document.querySelectorAll(".found").forEach((span) => span.classList.remove("found", "current"));
    hits = [];
    at = -1;
    const wanted = text.toLowerCase();
    for (const entry of wanted ? documents : []) {
      const starts = [];
      let length = 0;
      for (const piece of entry.texts) {
        starts.push(length);
        length += piece.toLowerCase().length;
      }
      for (let from = entry.text.indexOf(wanted); from >= 0; from = entry.text.indexOf(wanted, from + wanted.length)) {
        const spans = [];
        starts.forEach((start, number) => {
          const stop = number + 1 < starts.length ? starts[number + 1] : length;
          if (stop > from && start < from + wanted.length) spans.push(entry.tokens.children[number]);
        });
        spans.forEach((span) => span.classList.add("found"));
        hits.push({ entry, spans });
      }
    }
    step(1);
  }

  function step(by) {
    if (at >= 0) hits[at].spans.forEach((span) => span.classList.remove("current"));
    if (hits.length) {
      at = (at + by + hits.length) % hits.length;
      hits[at].spans.forEach((span) => span.classList.add("current"));
      hits[at].spans[0].scrollIntoView({ block: "center" });
    }
    const wanted = document.querySelector("#search input").value;
    count.textContent = !wanted ? "" : hits.length ? `${at + 1} of ${hits.length.toLocaleString("en")}` : "not found";
  }

  const form = document.getElementById("search");
  form.text.addEventListener("input", () => search(form.text.value));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    step(1);
  });
  document.getElementById("previous").addEventListener("click", () => step(-1));
  document.querySelectorAll(".documents").forEach((box) => page.data[box.dataset.pack].forEach((one) => lay(one, box)));
  document.documentElement.dataset.drawn = documents.length;
})();
