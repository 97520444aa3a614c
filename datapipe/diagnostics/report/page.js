"use strict";
(() => {
  const MOST = 200; // times as wide as the page

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const hide = () => { tip.hidden = true; };

  function show(event, text) {
    if (!text) return hide();
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - box.width - 4);
    const below = event.clientY + 18;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${below + box.height > window.innerHeight ? event.clientY - box.height - 10 : below}px`;
  }

  function inWords(ms) {
    if (ms === "") return "not measured";
    const value = Number(ms);
    return value >= 1000 ? `${(value / 1000).toFixed(2)} s` : `${value.toPrecision(3)} ms`;
  }

  // Round ticks for the part of the time that is shown.
  function drawTicks(wide, zoom) {
    const low = Number(wide.dataset.low), high = Number(wide.dataset.high);
    if (!(high > low)) return;
    const rough = (high - low) / (6 * zoom);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * (1 - 1e-9));
    const marks = [];
    for (let number = Math.ceil(low / step - 1e-9); number * step <= high; number += 1) {
      const share = (number * step - low) / (high - low);
      if (share > 1 - 0.04 / zoom) break;
      const mark = document.createElement("span");
      mark.textContent = `${Number((number * step).toPrecision(10))} s`;
      mark.style.left = `${100 * share}%`;
      marks.push(mark);
    }
    wide.querySelector(".ticks").replaceChildren(...marks);
  }

  function makeZoomable(plot) {
    const scroll = plot.querySelector(".scroll"), wide = plot.querySelector(".wide");
    let zoom = 1;
    function set(next, at) {
      const before = (scroll.scrollLeft + at) / wide.clientWidth;
      zoom = Math.min(MOST, Math.max(1, next));
      wide.style.width = `${100 * zoom}%`;
      scroll.scrollLeft = before * wide.clientWidth - at;
      drawTicks(wide, zoom);
      hide();
    }
    const middle = () => scroll.clientWidth / 2;
    const tools = document.createElement("div");
    tools.className = "tools";
    const buttons = [
      ["zoom in", "+", () => set(zoom * 2, middle())],
      ["zoom out", "\u2212", () => set(zoom / 2, middle())],
      ["show all", "all", () => set(1, 0)],
    ];
    for (const [label, text, act] of buttons) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", act);
      tools.append(button);
    }
    const hint = document.createElement("small");
    hint.textContent = "Ctrl and wheel zoom, too";
    tools.append(hint);
    plot.before(tools);
    scroll.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      set(zoom * (event.deltaY < 0 ? 1.3 : 1 / 1.3), event.clientX - scroll.getBoundingClientRect().left);
    }, { passive: false });
    scroll.addEventListener("keydown", (event) => {
      if (event.key === "+" || event.key === "=") set(zoom * 2, middle());
      else if (event.key === "-") set(zoom / 2, middle());
      else if (event.key === "0") set(1, 0);
    });
    scroll.addEventListener("scroll", hide);
    scroll.addEventListener("pointerleave", hide);
    return set;
  }

  // Where the pointer is, in the drawing's own units.
  function place(svg, event) {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [(event.clientX - box.left) / box.width * view.width, (event.clientY - box.top) / box.height * view.height];
  }

  function readSteps(plot) {
    const svg = plot.querySelector("svg");
    const rows = svg.dataset.steps.split(";").map((row) => row.split(","));
    const phases = svg.dataset.phases.split("|");
    const length = Number(plot.querySelector(".wide").dataset.high);
    svg.addEventListener("pointermove", (event) => {
      const now = place(svg, event)[0] / svg.viewBox.baseVal.width * length;
      let first = 0, last = rows.length - 1;
      while (first < last) {
        const middle = (first + last + 1) >> 1;
        if (Number(rows[middle][0]) <= now) first = middle; else last = middle - 1;
      }
      const [start, step, gap, wait, phase] = rows[first];
      show(event, [
        `at ${Number(start).toFixed(2)} s: step of ${inWords(step)}`,
        `the GPU waited ${gap === "" ? "(not measured)" : inWords(gap)}`,
        `the loop in next() ${inWords(wait)}`,
        Number(phase) < 0 ? "steady" : phases[Number(phase)],
      ].join("\n"));
    });
  }

  for (const plot of document.querySelectorAll(".plot")) {
    makeZoomable(plot);
    readSteps(plot);
  }
})();
