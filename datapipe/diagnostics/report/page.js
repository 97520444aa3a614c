"use strict";
(() => {
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

  // Where the pointer is, in the drawing's own units.
  function place(svg, event) {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [(event.clientX - box.left) / box.width * view.width, (event.clientY - box.top) / box.height * view.height];
  }

  function readSteps(plot) {
    const svg = plot.querySelector("svg"), scroll = plot.querySelector(".scroll");
    scroll.addEventListener("scroll", hide);
    scroll.addEventListener("pointerleave", hide);
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

  document.querySelectorAll(".plot").forEach(readSteps);
})();
