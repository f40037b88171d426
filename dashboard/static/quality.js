// How well a model does in detail: the confusion matrix, classes, intervals, and curves over bands of scores.
import { el, number, table, update } from "./page.js";

const AXES = { roc: ["ROC", "false positives", "true positives"], precision: ["Precision and recall", "recall", "precision"],
  calibration: ["Calibration", "predicted", "observed"] };
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const isDetail = (name) => name.includes("/") || name === "test threshold"; // no figure to follow over steps

// The parts of the details of held-out rows, by what they are about: [[rest of the name …], value].
function under(metrics, first) {
  return Object.entries(metrics).filter(([name]) => name.startsWith(`test ${first}/`))
    .map(([name, value]) => [name.slice(first.length + 6).split("/"), value]);
}

export function curvesOf(metrics) {
  const bands = new Map();
  for (const [[upTo, what], value] of under(metrics, "bands")) bands.set(upTo, { ...bands.get(upTo), [what]: value });
  const rising = [...bands.keys()].sort((a, b) => a - b).map((upTo) => bands.get(upTo));
  const rows = rising.reduce((sum, band) => sum + band.rows, 0), positives = rising.reduce((sum, band) => sum + band.positives, 0);
  if (!positives || positives === rows) return null;
  let taken = 0, hits = 0;
  const roc = [[0, 0]], precision = [];
  for (const band of [...rising].reverse()) {
    taken += band.rows;
    hits += band.positives;
    roc.push([(taken - hits) / (rows - positives), hits / positives]);
    precision.push([hits / positives, hits / taken]);
  }
  return { roc, precision, calibration: rising.map((band) => [band.mean, band.positives / band.rows]) };
}

// By chance alone, or as sure as it should be: what a curve is compared with.
function diagonal(plot) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colour("--soft");
  ctx.setLineDash([6, 6]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, plot.valToPos(0, "y", true));
  ctx.lineTo(bbox.left + bbox.width, plot.valToPos(1, "y", true));
  ctx.stroke();
  ctx.restore();
}

export class Quality {
  constructor() {
    this.tables = el("div");
    this.charts = el("div", { class: "columns three" });
    this.panel = el("section", { class: "panel", id: "quality", hidden: true }, el("h2", {}, "Held-out rows"), this.tables, this.charts);
    this.shown = "";
    this.plots = [];
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.charts);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => this.draw(this.curves);
    this.scheme.addEventListener("change", this.recolour);
  }

  show(metrics) {
    const details = Object.entries(metrics).filter(([name]) => name.startsWith("test ") && isDetail(name));
    this.panel.hidden = !details.length;
    if (String(details) === this.shown) return;
    this.shown = String(details);
    const confusion = under(metrics, "confusion"), taken = [...new Set(confusion.map(([[, predicted]]) => predicted))];
    const truths = [...new Set(confusion.map(([[truth]]) => truth))];
    const count = (truth, predicted) => confusion.find(([[t, p]]) => t === truth && p === predicted)?.[1];
    const classes = under(metrics, "classes"), whats = [...new Set(classes.map(([[what]]) => what))];
    const rate = (name, what) => classes.find(([[w, ...n]]) => w === what && n.join("/") === name)?.[1];
    const ends = details.filter(([name]) => name.endsWith("/low")).map(([name, low]) => [name.slice(5, -4), low, metrics[name.replace(/low$/, "high")]]);
    update(this.tables,
      confusion.length > 0 && [el("h3", {}, metrics["test threshold"] === undefined ? "Confusion matrix" : `Confusion matrix above ${number(metrics["test threshold"])}`),
        table([["class", ""], ...taken.map((name) => [`taken for ${name}`, "number"])],
          truths.map((truth) => [truth, ...taken.map((predicted) => number(count(truth, predicted)))]), "Confusion matrix")],
      classes.length > 0 && [el("h3", {}, "Classes"), table([["class", ""], ...whats.map((what) => [what, "number"])],
        [...new Set(classes.map(([[, ...name]]) => name.join("/")))].map((name) => [name, ...whats.map((what) => number(rate(name, what)))]), "Classes")],
      ends.length > 0 && [el("h3", {}, "95 % intervals"), table([["figure", ""], ["from", "number"], ["to", "number"]],
        ends.map(([name, low, high]) => [name, number(low), number(high)]), "Intervals by bootstrap")]);
    this.draw(curvesOf(metrics));
  }

  draw(curves) {
    this.curves = curves;
    for (const plot of this.plots) plot.destroy();
    this.plots = [];
    this.charts.replaceChildren();
    if (!curves) return;
    for (const [kind, points] of Object.entries(curves)) {
      const [title, x, y] = AXES[kind];
      const place = el("div", { class: "chart", role: "img", tabindex: "0",
        "aria-label": `${title}: ${points.map(([a, b]) => `${x} ${number(a)}, ${y} ${number(b)}`).join("; ")}` });
      this.charts.append(el("div", {}, el("h3", {}, title), place));
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui", labelSize: 16 };
      const rising = [...points].sort((a, b) => a[0] - b[0]);
      this.plots.push(new uPlot({
        width: place.clientWidth || 260, height: 220, legend: { show: false }, cursor: { show: false },
        scales: { x: { time: false, range: [0, 1] }, y: { range: [-0.02, 1.02] } },
        axes: [{ ...axis, size: 28, label: x }, { ...axis, size: 46, label: y }],
        series: [{}, { label: y, stroke: colour("--curve-1"), width: 2, points: { show: true, size: 5 } }],
        hooks: { drawAxes: kind === "precision" ? [] : [diagonal] },
      }, [rising.map((p) => p[0]), rising.map((p) => p[1])], place));
    }
  }

  fit() {
    for (const plot of this.plots) {
      const width = plot.root.parentElement?.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: plot.height });
    }
  }

  close() {
    this.watcher.disconnect();
    this.scheme.removeEventListener("change", this.recolour);
    for (const plot of this.plots) plot.destroy();
  }
}
