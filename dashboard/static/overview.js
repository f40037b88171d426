// The list of runs, and how the parties stand.
import { ask, bytes, chip, day, duration, el, every, number, percent, table } from "./page.js";

function score(metrics) {
  if (metrics["test accuracy"] !== undefined) return percent(metrics["test accuracy"]);
  const name = ["test r2", "test loss", "upper loss"].find((each) => metrics[each] !== undefined);
  return name ? `${name} ${number(metrics[name])}` : "–";
}

export function runs(main, leaving) {
  const place = el("section", { class: "panel" }, el("p", { class: "empty" }, "Loading …"));
  main.append(el("div", { class: "title" }, el("h1", {}, "Runs"), el("span", { class: "spacer" }),
    el("a", { class: "button", href: "#/new" }, "New run")), place);
  every(2, leaving, async () => {
    const { runs: found } = await ask("/api/runs");
    if (!found.length) {
      place.replaceChildren(el("p", { class: "empty" }, "There are no runs yet. ", el("a", { href: "#/new" }, "Start one")));
      return;
    }
    place.replaceChildren(table(
      [["Run", ""], ["State", ""], ["Progress", ""], ["Score", "number"], ["Bytes", "number"], ["Time", "number"], ["Started", "number"]],
      found.map((run) => [
        el("span", {}, el("a", { href: `#/run/${encodeURIComponent(run.run_id)}` }, run.run_id), el("br"),
          el("span", { class: "soft small" }, `${run.algorithm} · ${run.parties.join(", ")}`)),
        chip(run.state),
        el("span", {}, `${run.step} of ${run.steps}`, el("progress", { class: "bar", max: run.steps || 1, value: run.step, "aria-label": "progress" })),
        score(run.metrics), bytes(run.metrics.bytes), duration(run.metrics.seconds), day(run.created),
      ])));
  });
}

export function partyTable(found) {
  return table(
    [["Party", ""], ["Health", ""], ["Tables", ""], ["Version", ""], ["Answers in", "number"], ["Sent to it", "number"], ["Got from it", "number"]],
    found.map((party) => [
      el("span", {}, el("b", {}, party.name), el("br"), el("span", { class: "soft small" }, party.address)),
      el("span", {}, el("span", { class: `chip ${party.reachable ? (party.problem ? "odd" : "up") : "down"}` },
        party.reachable ? (party.problem ? "look at it" : "up") : "down"),
        party.problem && el("span", { class: "small problem" }, el("br"), party.problem)),
      party.tables.join(", ") || "–", party.version || "–",
      party.reachable ? `${party.latency_milliseconds.toFixed(1)} ms` : "–", bytes(party.sent_bytes), bytes(party.received_bytes),
    ]));
}

export function parties(main, leaving) {
  const place = el("section", { class: "panel" }, el("p", { class: "empty" }, "Asking every party …"));
  main.append(el("div", { class: "title" }, el("h1", {}, "Parties")), place,
    el("p", { class: "soft small" }, "Bytes are those of training and prediction rounds since this coordinator started."));
  every(5, leaving, async () => place.replaceChildren(partyTable(await ask("/api/parties"))));
}
