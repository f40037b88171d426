// Live curves with uPlot: drawn at most once a frame, read by pointer or keys, as text and as a table.
import { el, number, table, update } from "./page.js";

const TOTALS = new Set(["rounds", "bytes", "label releases", "seconds", "test threshold"]);
const COLOURS = 6;
const MOST_ROWS = 200;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Curves {
  constructor(title, accepts = () => true) {
    this.title = title;
    this.accepts = accepts;
    this.points = new Map(); // name → Map(step → value)
    this.hovered = null;
    this.empty = el("p", { class: "empty" }, "Nothing measured yet");
    this.place = el("div", { class: "chart", tabindex: "0", role: "img" }, this.empty);
    this.legend = el("p", { class: "legend" });
    this.whole = el("button", { class: "small quiet", hidden: true, onclick: () => this.zoomOut() }, "Show all steps");
    this.values = el("div");
    this.panel = el("section", { class: "panel" }, el("div", { class: "title" }, el("h2", {}, title), el("span", { class: "spacer" }), this.whole),
      this.place, this.legend, el("details", { class: "small values" }, el("summary", {}, "Values"), this.values));
    this.panel.querySelector("details").addEventListener("toggle", () => this.tabulate());
    this.place.addEventListener("keydown", (key) => this.step(key));
    this.place.addEventListener("blur", () => this.hover(null));
    this.describe();
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.place);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => { this.names = null; this.draw(); };
    this.scheme.addEventListener("change", this.recolour);
  }

  add(event, prefix = "") {
    for (const [name, value] of Object.entries(event.metrics)) {
      if (TOTALS.has(name) || name.includes("/") || !this.accepts(name) || typeof value !== "number") continue;
      this.put(prefix + name, event.step, value);
    }
  }

  put(name, step, value) {
    if (!this.points.has(name)) this.points.set(name, new Map());
    this.points.get(name).set(step, value);
    if (!this.waiting) this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  draw() {
    if (!this.points.size || !this.place.isConnected) return;
    const names = [...this.points.keys()].sort((a, b) => a.startsWith("test") - b.startsWith("test"));
    const steps = [...new Set(names.flatMap((name) => [...this.points.get(name).keys()]))].sort((a, b) => a - b);
    this.data = [steps, ...names.map((name) => steps.map((step) => this.points.get(name).get(step) ?? null))];
    if (!this.plot || String(names) !== this.names) this.build(names);
    else this.plot.setData(this.data, this.whole.hidden); // a part that is looked at stays
    this.describe();
    this.tabulate();
  }

  build(names) {
    this.plot?.destroy();
    this.empty.remove();
    this.names = String(names);
    this.shown = names;
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const series = names.map((name, i) => ({
      label: name, stroke: colour(`--curve-${1 + (i % COLOURS)}`), width: 2, spanGaps: true, dash: i >= COLOURS ? [6, 4] : undefined,
      points: { show: name.startsWith("test"), size: 6, fill: colour(`--curve-${1 + (i % COLOURS)}`) },
    }));
    this.plot = new uPlot({
      width: this.place.clientWidth, height: 220, legend: { show: false }, cursor: { y: false, drag: { x: true, y: false, dist: 8 } },
      scales: { x: { time: false } },
      axes: [{ ...axis, size: 28, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")) }, { ...axis, size: 46, values: (_, ticks) => ticks.map(number) }],
      series: [{}, ...series],
      hooks: {
        setCursor: [(plot) => this.hover(plot.cursor.left >= 0 ? plot.cursor.idx : null)],
        setSelect: [() => { this.whole.hidden = false; }],
      },
    }, this.data, this.place);
    this.plot.over.addEventListener("dblclick", () => this.zoomOut());
  }

  zoomOut() {
    this.whole.hidden = true;
    this.plot?.setData(this.data);
    this.place.focus();
  }

  // Arrow keys go from measurement to measurement.
  step(key) {
    const steps = this.data?.[0];
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!steps || !(key.key in moves)) return;
    key.preventDefault();
    const from = this.hovered ?? (moves[key.key] < 0 ? steps.length : -1);
    const idx = Math.max(0, Math.min(steps.length - 1, from + moves[key.key]));
    this.plot.setCursor({ left: this.plot.valToPos(steps[idx], "x"), top: 0 }, false);
    this.hover(idx);
  }

  hover(idx) {
    this.hovered = idx ?? null;
    this.describe();
  }

  // The legend shows the newest values, or those under the pointer; the chart's label says the same in words.
  describe() {
    if (!this.shown) {
      this.place.setAttribute("aria-label", `${this.title}: nothing measured yet`);
      return;
    }
    const [steps, ...curves] = this.data;
    const at = this.hovered;
    const value = (curve) => (at === null ? curve.findLast((one) => one !== null) : curve[at]);
    update(this.legend, el("span", { class: "step" }, at === null ? `step ${steps.at(-1)}` : `at step ${steps[at]}`),
      this.shown.map((name, i) => el("span", {}, el("i", { class: `curve-${1 + (i % COLOURS)} ${i >= COLOURS ? "dashed" : ""}` }), `${name} `, el("b", {}, number(value(curves[i]))))));
    const told = this.shown.map((name, i) => {
      const known = curves[i].filter((one) => one !== null);
      return at === null ? `${name} from ${number(known[0])} to ${number(known.at(-1))}` : `${name} ${number(curves[i][at])}`;
    });
    const where = at === null ? `steps ${steps[0]} to ${steps.at(-1)}` : `step ${steps[at]}`;
    this.place.setAttribute("aria-label", `${this.title}, ${where}: ${told.join(", ")}. Arrow keys read single steps; dragging zooms.`);
  }

  tabulate() {
    if (!this.shown || !this.panel.querySelector("details").open) return;
    const [steps, ...curves] = this.data;
    const first = Math.max(0, steps.length - MOST_ROWS);
    const rows = steps.slice(first).map((step, i) => [number(step), ...curves.map((curve) => number(curve[first + i]))]).reverse();
    update(this.values, table([["Step", "number"], ...this.shown.map((name) => [name, "number"])], rows, `${this.title}, newest first`));
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
