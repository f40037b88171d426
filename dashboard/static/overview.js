// The list of runs, how the parties stand, and who did what.
import { ask, bytes, chip, day, duration, el, every, notice, number, percent, table, update } from "./page.js";

function score(metrics) {
  for (const name of ["test accuracy", "training accuracy"]) if (metrics[name] !== undefined) return percent(metrics[name]);
  const name = ["test r2", "test loss", "upper loss", "objective"].find((each) => metrics[each] !== undefined);
  return name ? `${name} ${number(metrics[name])}` : "–";
}

const COLUMNS = [
  ["Run", "", (run) => run.run_id], ["State", "", (run) => run.state], ["Progress", "", (run) => run.step / (run.steps || 1)],
  ["Score", "number", (run) => run.metrics["test accuracy"] ?? run.metrics["training accuracy"] ?? run.metrics["test r2"]],
  ["Bytes", "number", (run) => run.metrics.bytes], ["Time", "number", (run) => run.metrics.seconds], ["Started", "number", (run) => run.created],
];
const before = (a, b) => (a === undefined) - (b === undefined) || (a < b ? 1 : a > b ? -1 : 0);

export function runs(main, leaving) {
  const place = el("section", { class: "panel" }, el("p", { class: "empty" }, "Loading …"));
  const search = el("input", { type: "search", id: "search", placeholder: "Name or tag", "aria-label": "Search runs by name or tag" });
  const chosen = new Set();
  const side = el("a", { class: "button", id: "compare", hidden: true }, "Compare");
  let sorted = { by: 6, largest: true }, found = [];
  main.append(el("div", { class: "title" }, el("h1", {}, "Runs"), el("span", { class: "spacer" }), search, side,
    el("a", { class: "button", href: "#/new" }, "New run")), place);

  function sortBy(by) {
    sorted = { by, largest: sorted.by === by ? !sorted.largest : true };
    draw();
  }
  function head([name, kind], by) {
    const now = sorted.by === by;
    const label = now ? `${name} ${sorted.largest ? "↓" : "↑"}` : name;
    return [el("button", { class: "sort", "aria-pressed": String(now), title: `Sort by ${name.toLowerCase()}`, onclick: () => sortBy(by) }, label), kind];
  }
  function choose(id, box) {
    if (box.checked) chosen.add(id); else chosen.delete(id);
    side.hidden = chosen.size < 2;
    side.href = `#/compare/${[...chosen].map(encodeURIComponent).join(",")}`;
  }
  function draw() {
    if (!found.length) {
      update(place, el("p", { class: "empty" }, search.value ? "No run has such a name or tag." : ["There are no runs yet. ", el("a", { href: "#/new" }, "Start one")]));
      return;
    }
    const value = COLUMNS[sorted.by][2];
    const rows = [...found].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return x === undefined || y === undefined || sorted.largest ? before(x, y) : before(y, x);
    });
    update(place, table(
      [["", ""], ...COLUMNS.map(head)],
      rows.map((run) => Object.assign([
        el("input", { type: "checkbox", checked: chosen.has(run.run_id), "aria-label": `Choose ${run.run_id} to compare`, onchange: (change) => choose(run.run_id, change.target) }),
        el("span", {}, el("a", { href: `#/run/${encodeURIComponent(run.run_id)}` }, run.run_id), run.tags.map((tag) => el("span", { class: "tag" }, tag)), el("br"),
          el("span", { class: "soft small" }, `${run.algorithm} · ${run.parties.join(", ")}`)),
        el("span", {}, chip(run.state), run.queue_position ? el("span", { class: "soft small" }, ` number ${run.queue_position}`) : ""),
        el("span", {}, `${run.step} of ${run.steps}`, el("progress", { class: "bar", max: run.steps || 1, value: run.step, "aria-label": `step ${run.step} of ${run.steps}` })),
        score(run.metrics), bytes(run.metrics.bytes), duration(run.metrics.seconds), day(run.created),
      ], { key: run.run_id })), "Runs"));
  }
  async function load() {
    const wanted = search.value;
    const { runs: newest } = await ask(`/api/runs?${new URLSearchParams({ search: wanted })}`);
    if (wanted !== search.value) return; // a newer search is on its way
    found = newest;
    draw();
  }
  let waiting;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => load().catch((problem) => notice(problem.message)), 200);
  });
  every(2, leaving, load);
}

// Why a party cannot take part; where `uses` names the tables that a run reads, others do not count.
function troubles(party, uses) {
  const used = uses?.[party.name];
  const tables = party.tables.filter((each) => each.problem && (!used || used.includes(each.name)));
  return [party.problem, ...tables.map((each) => `${each.name}: ${each.problem}`)].filter(Boolean);
}

function tableState(each) {
  if (each.problem) return "cannot be loaded";
  return each.loaded_percent < 100 ? `loading, ${each.loaded_percent} %` : `${number(each.rows)} × ${number(each.features)}`;
}

export function partyTable(found, uses) {
  return table(
    [["Party", ""], ["Health", ""], ["Tables", ""], ["Version", ""], ["Answers in", "number"], ["Sent to it", "number"], ["Got from it", "number"]],
    found.map((party) => {
      const wrong = troubles(party, uses);
      const shown = party.tables.filter((each) => !uses?.[party.name] || uses[party.name].includes(each.name));
      return Object.assign([
        el("span", {}, el("b", {}, party.name), el("br"), el("span", { class: "soft small" }, party.address)),
        el("span", {}, el("span", { class: `chip ${party.reachable ? (wrong.length ? "odd" : "up") : "down"}` },
          party.reachable ? (wrong.length ? "look at it" : "up") : "down"),
          wrong.map((each) => el("span", { class: "small problem" }, el("br"), each))),
        shown.length ? el("ul", { class: "plain small" }, shown.map((each) => el("li", { "data-key": each.name }, el("b", {}, each.name), ` ${tableState(each)}`,
          each.notice && el("span", { class: "soft" }, el("br"), each.notice)))) : "–",
        party.version || "–",
        party.reachable ? `${party.latency_milliseconds.toFixed(1)} ms` : "–", bytes(party.sent_bytes), bytes(party.received_bytes),
      ], { key: party.name });
    }), "How the parties stand");
}

export function parties(main, leaving) {
  const place = el("section", { class: "panel" }, el("p", { class: "empty" }, "Asking every party …"));
  main.append(el("div", { class: "title" }, el("h1", {}, "Parties")), place,
    el("p", { class: "soft small" }, "Bytes are those of training and prediction rounds since this coordinator started."));
  every(5, leaving, async () => update(place, partyTable(await ask("/api/parties"))));
}

export function audit(main, leaving) {
  const place = el("section", { class: "panel" }, el("p", { class: "empty" }, "Loading …"));
  main.append(el("div", { class: "title" }, el("h1", {}, "Audit")), place,
    el("p", { class: "soft small" }, "The newest lines of this coordinator's trail; ", el("code", {}, "parley audit"), " checks and prints all of it."));
  every(5, leaving, async () => {
    const found = await ask("/api/audit");
    update(place, found.length ? table(
      [["When", ""], ["Who", ""], ["From", ""], ["What", ""], ["About", ""], ["Outcome", ""]],
      found.map((line) => Object.assign([
        day(line.time), el("span", {}, el("b", {}, line.name), ` ${line.role}`), line.address,
        line.action.split("/").pop(), line.subject || "–", line.outcome,
      ], { key: String(line.sequence) })), "Who did what, newest first") : el("p", { class: "empty" }, "Nobody has asked for anything yet."));
  });
}
