"use strict";
// Draws the charts of a report in the colours of the theme, with legends, tables and keys that need no mouse.
(() => {
  const { charts, marks } = page.data;
  // Told apart with any colour vision: hues of Okabe and Ito, darker or lighter for contrast to the paper.
  const PALETTES = {
    light: ["#0072b2", "#d55e00", "#00855f", "#c2528b", "#8a6a00", "#3f9bd0", "#4b3fa0", "#6b6b6b", "#7a2e12", "#2b6f2b",
      "#b07cc6", "#8d8d8d"],
    dark: ["#56b4e9", "#e69f00", "#2fbf93", "#e88bbd", "#f0e442", "#d8743c", "#b3a8ff", "#c4c4c4", "#8fd14f", "#3f8fd0",
      "#d19a66", "#8a8f98"],
  };
  const PATTERNS = ["", "/", ".", "\\", "x", "-"];
  // The same patterns on the swatches of legends, as SVG paths.
  const STROKES = {
    "": "", "/": "M2 12L10 0M10 12L18 0M18 12L26 0", "\\": "M2 0L10 12M10 0L18 12M18 0L26 12", "-": "M0 3H26M0 9H26",
    "x": "M2 12L10 0M10 12L18 0M18 12L26 0M2 0L10 12M10 0L18 12M18 0L26 12",
    ".": "M5 4h2M12 4h2M19 4h2M5 9h2M12 9h2M19 9h2",
  };
  const colour = (number) => {
    const palette = PALETTES[page.dark() ? "dark" : "light"];
    return palette[number % palette.length];
  };
  const patternOf = (number) => PATTERNS[Math.floor(number / 3) % PATTERNS.length];
  const see = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");

  function painted(trace) {
    const own = colour(trace.meta.colour);
    const pattern = { shape: patternOf(trace.meta.colour), fgcolor: page.css("--paper"), size: 8, solidity: 0.2 };
    const copy = { ...trace };
    if (trace.type === "bar") {
      copy.marker = { color: own, line: { color: page.css("--paper"), width: 1 }, pattern: { ...pattern, bgcolor: own } };
    } else if (trace.stackgroup) {
      copy.line = { width: 1.5, ...trace.line, color: own };
      copy.fillcolor = see(own, 0.72);
      copy.fillpattern = { ...pattern, bgcolor: see(own, 0.72) };
    } else {
      copy.line = { ...trace.line, color: trace.meta.asked ? page.css("--ink") : own };
      copy.marker = { color: own, size: 8 };
    }
    return copy;
  }

  function shapes(chart) {
    const ink = page.css("--soft");
    const line = (x, dash) => ({
      type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: ink, width: 1.5, dash },
    });
    const found = (chart.layout.shapes || []).map((shape) => line(shape.x0, "solid"));
    const notes = [];
    if (chart.layout.shapes) {
      const at = chart.layout.shapes[0].x0;
      notes.push({ x: Math.log10(at), y: 1, yref: "paper", yanchor: "bottom", text: at.toLocaleString("en"), showarrow: false });
    }
    if (chart.over_steps) {
      const steps = new Map();
      for (const mark of chart.run === null ? marks.flat() : marks[chart.run]) {
        steps.set(mark.step, [...(steps.get(mark.step) || []), mark]);
      }
      for (const [step, own] of steps) {
        const edited = own.some((mark) => mark.kind === "edit");
        found.push(line(step, edited ? "solid" : "dot"));
        notes.push({
          x: step, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: edited ? "◆" : "↻",
          hovertext: `behind step ${step}: ${own.map((mark) => mark.text).join("<br>")}`,
        });
      }
    }
    return { shapes: found, annotations: notes };
  }

  function axis(given) {
    return {
      gridcolor: page.css("--line"), zerolinecolor: page.css("--line"), linecolor: page.css("--line"), automargin: true, ...given,
    };
  }

  // Whole numbers where Plotly would put single digits between the powers of ten.
  function logTicks(chart) {
    const values = chart.traces.flatMap((trace) => trace.x).filter((value) => value > 0);
    const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log10);
    const found = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
      found.push(...(high - low < 2.5 ? [1, 2, 5] : [1]).map((digit) => digit * 10 ** power));
    }
    return { tickvals: found, ticktext: found.map((value) => value.toLocaleString("en")) };
  }

  function layout(chart) {
    const { xaxis, yaxis, shapes: _, ...rest } = chart.layout;
    return {
      ...rest, ...shapes(chart), showlegend: false, hovermode: chart.over_steps ? "x unified" : "closest",
      margin: { l: 8, r: 12, t: 24, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: page.css("--ink"), size: 12, family: "system-ui, sans-serif" },
      hoverlabel: { bgcolor: page.css("--panel"), bordercolor: page.css("--line"), font: { color: page.css("--ink") } },
      xaxis: axis({
        ...(chart.over_steps ? { title: { text: "step" } } : {}), ...(xaxis?.type === "log" ? logTicks(chart) : {}), ...xaxis,
      }),
      yaxis: axis({ ...yaxis }), dragmode: "zoom",
    };
  }

  const options = {
    responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: "reset",
  };

  function draw(chart) {
    const element = document.getElementById(chart.id);
    const hidden = (element.data || []).map((trace) => trace.visible);
    const traces = chart.traces.map((trace, number) => ({ ...painted(trace), visible: hidden[number] ?? true }));
    Plotly.react(element, traces, layout(chart), options);
    legend(chart, element);
  }

  function swatch(trace) {
    const own = trace.line ? trace.line.color : trace.marker.color;
    const dashes = { dash: "6 4", dot: "2 3", dashdot: "6 3 2 3" };
    const dash = trace.line && !trace.stackgroup ? dashes[trace.line.dash] || "" : "";
    const strokes = `<path d="${STROKES[patternOf(trace.meta.colour)]}" stroke="${page.css("--paper")}" stroke-width="1.5"/>`;
    return trace.stackgroup || trace.type === "bar"
      ? `<svg aria-hidden="true"><rect width="26" height="12" rx="2" fill="${own}"/>${strokes}</svg>`
      : `<svg aria-hidden="true"><line x1="0" y1="6" x2="26" y2="6" stroke="${own}" stroke-width="3" stroke-dasharray="${dash}"/></svg>`;
  }

  function legend(chart, element) {
    const box = document.querySelector(`.legend[data-for="${chart.id}"]`);
    const focused = [...box.children].indexOf(document.activeElement);
    const asked = element.data.map((trace, number) => [trace, number]).filter(([trace]) => trace.meta.asked);
    const single = element.data.map((trace, number) => [trace, number]).filter(([trace]) => !trace.meta.asked);
    box.replaceChildren();
    if (single.length + asked.length < 2) return;
    const add = (label, mark, numbers) => {
      const button = document.createElement("button");
      button.type = "button";
      button.innerHTML = mark;
      button.append(label);
      button.setAttribute("aria-pressed", String(element.data[numbers[0]].visible !== "legendonly"));
      button.addEventListener("click", () => {
        const visible = element.data[numbers[0]].visible === "legendonly" ? true : "legendonly";
        Plotly.restyle(element, { visible }, numbers).then(() => legend(chart, element));
      });
      box.append(button);
    };
    for (const [trace, number] of single) add(trace.name, swatch(trace), [number]);
    if (asked.length) add("asked", swatch(asked[0][0]), asked.map(([, number]) => number));
    if (focused >= 0) box.children[focused].focus();
  }

  // A table of what a chart shows, made when it is opened.
  function table(chart, details) {
    const horizontal = chart.traces[0].orientation === "h";
    const places = [...new Set(chart.traces.flatMap((trace) => (horizontal ? trace.y : trace.x)))];
    const rows = places.map((place) => chart.traces.map((trace) => {
      const at = (horizontal ? trace.y : trace.x).indexOf(place);
      return at < 0 ? null : trace.text && trace.meta.asked ? trace.text[at] : (horizontal ? trace.x : trace.y)[at];
    }));
    const box = document.createElement("div");
    box.className = "table";
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", `Numbers of ${chart.title}`);
    const element = document.createElement("table");
    const head = element.createTHead().insertRow();
    for (const name of [chart.over_steps ? "step" : "", ...chart.traces.map((trace) => trace.name)]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      head.append(cell);
    }
    const body = element.createTBody();
    rows.forEach((row, number) => {
      const line = body.insertRow();
      line.insertCell().textContent = places[number].toLocaleString("en");
      for (const value of row) {
        line.insertCell().textContent =
          value === null ? "–" : typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 6 }) : value;
      }
    });
    box.append(element);
    details.append(box);
  }

  function key(event, element) {
    const range = element._fullLayout.xaxis.range.map(Number);
    const width = range[1] - range[0];
    const moves = {
      ArrowLeft: [-width / 5, -width / 5], ArrowRight: [width / 5, width / 5],
      "+": [width / 5, -width / 5], "=": [width / 5, -width / 5], "-": [-width / 4, width / 4],
    };
    if (event.key === "0") Plotly.relayout(element, { "xaxis.autorange": true, "yaxis.autorange": true });
    else if (moves[event.key]) {
      Plotly.relayout(element, { "xaxis.range": [range[0] + moves[event.key][0], range[1] + moves[event.key][1]] });
    } else return;
    event.preventDefault();
  }

  for (const chart of charts) {
    draw(chart);
    const element = document.getElementById(chart.id);
    element.addEventListener("keydown", (event) => key(event, element));
    const details = document.querySelector(`.numbers[data-for="${chart.id}"]`);
    details.addEventListener("toggle", () => details.open && !details.querySelector("table") && table(chart, details));
  }
  page.onTheme(() => charts.forEach(draw));
  document.documentElement.dataset.drawn = charts.length;
})();
