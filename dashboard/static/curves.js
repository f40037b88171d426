// Live curves with uPlot: one chart for losses, one for scores, redrawn at most once a frame.
import { el, measured, number } from "./page.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Curves {
  constructor(title, accepts) {
    this.accepts = accepts;
    this.points = new Map(); // metric name → Map(step → value)
    this.place = el("div", { class: "chart" });
    this.legend = el("p", { class: "legend" });
    this.empty = el("p", { class: "empty" }, "Nothing measured yet");
    this.panel = el("section", { class: "panel" }, el("h2", {}, title), this.place, this.legend);
    this.place.append(this.empty);
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.place);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => { this.names = null; this.draw(); };
    this.scheme.addEventListener("change", this.recolour);
  }

  add(event) {
    for (const [name, value] of Object.entries(measured(event))) {
      if (!this.accepts(name) || typeof value !== "number") continue;
      if (!this.points.has(name)) this.points.set(name, new Map());
      this.points.get(name).set(event.step, value);
      this.schedule();
    }
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  draw() {
    if (!this.points.size || !this.place.isConnected) return;
    const names = [...this.points.keys()].sort((a, b) => a.startsWith("test") - b.startsWith("test"));
    const steps = [...new Set(names.flatMap((name) => [...this.points.get(name).keys()]))].sort((a, b) => a - b);
    const data = [steps, ...names.map((name) => steps.map((step) => this.points.get(name).get(step) ?? null))];
    if (!this.plot || String(names) !== this.names) this.build(names, data);
    else this.plot.setData(data);
    this.legend.replaceChildren(...names.map((name, i) => {
      const last = [...this.points.get(name).values()].at(-1);
      return el("span", {}, el("i", { class: `curve-${1 + (i % 4)}` }), `${name} `, el("b", {}, number(last)));
    }));
  }

  build(names, data) {
    this.plot?.destroy();
    this.empty.remove();
    this.names = String(names);
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const series = names.map((name, i) => ({
      label: name, stroke: colour(`--curve-${1 + (i % 4)}`), width: 2, spanGaps: true,
      points: { show: name.startsWith("test"), size: 6, fill: colour(`--curve-${1 + (i % 4)}`) },
    }));
    this.plot = new uPlot({
      width: this.place.clientWidth, height: 220, legend: { show: false }, cursor: { y: false, drag: { x: false, y: false } },
      scales: { x: { time: false } },
      axes: [{ ...axis, size: 28, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")) }, { ...axis, size: 46, values: (_, ticks) => ticks.map(number) }],
      series: [{}, ...series],
    }, data, this.place);
  }

  fit() {
    if (this.plot && this.place.clientWidth) this.plot.setSize({ width: this.place.clientWidth, height: 220 });
  }

  close() {
    this.watcher.disconnect();
    this.scheme.removeEventListener("change", this.recolour);
    this.plot?.destroy();
  }
}
