// Runs side by side: where their specs differ, what they measured, and their curves in one chart.
import { Curves } from "./curves.js";
import { ask, bytes, chip, day, duration, el, every, number, table, update } from "./page.js";
import { isCount, isLoss } from "./run.js";

const shown = (value) => (value === null || value === undefined ? "–" : typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value));

export function compare(main, leaving, ids) {
  const place = el("section", { class: "panel" }, el("p", { class: "empty" }, "Loading …"));
  const losses = new Curves("Loss", isLoss), scores = new Curves("Score", (name) => !isLoss(name) && !isCount(name));
  main.append(el("div", { class: "title" }, el("h1", {}, "Compare runs"), el("span", { class: "spacer" }), el("a", { class: "button", href: "#/runs" }, "All runs")),
    place, el("div", { class: "columns" }, losses.panel, scores.panel));
  const sources = ids.map((id) => {
    const source = new EventSource(`/api/runs/${encodeURIComponent(id)}/events`);
    source.addEventListener("run", (message) => {
      const { event } = JSON.parse(message.data);
      losses.add(event, `${id} `);
      scores.add(event, `${id} `);
    });
    source.addEventListener("end", () => source.close());
    return source;
  });
  leaving.addEventListener("abort", () => { sources.forEach((source) => source.close()); losses.close(); scores.close(); });
  every(5, leaving, async () => {
    const { runs, settings } = await ask(`/api/compare?${new URLSearchParams(ids.map((id) => ["run", id]))}`);
    const line = (name, value) => [name, ...runs.map(value)];
    const measured = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].filter((name) => name !== "bytes" && name !== "seconds");
    const columns = () => [["", ""], ...runs.map((run) => [el("a", { href: `#/run/${encodeURIComponent(run.run_id)}` }, run.run_id), "number"])];
    update(place, el("h2", {}, "Settings that differ"),
      Object.keys(settings).length
        ? table(columns(), Object.entries(settings).map(([name, values]) => [el("code", {}, name), ...values.map(shown)]), "Settings that differ")
        : el("p", { class: "empty" }, "The specs are the same"),
      el("h2", {}, "Results"),
      table(columns(), [
        line("state", (run) => chip(run.state)), line("step", (run) => `${number(run.step)} of ${number(run.steps)}`),
        line("started", (run) => day(run.created)), line("bytes", (run) => bytes(run.metrics.bytes)), line("time", (run) => duration(run.metrics.seconds)),
        ...measured.map((name) => line(name, (run) => number(run.metrics[name]))),
      ], "Results"));
  });
}
