// One run: how it stands, its curves, what it found, what it released, what leaves, what happened.
import { columnParts } from "./columns.js";
import { Curves } from "./curves.js";
import { partyTable } from "./overview.js";
import { isDetail, Quality } from "./quality.js";
import { ask, bytes, chip, clock, day, duration, el, every, notice, number, percent, table, update, Problem } from "./page.js";

const ENDED = new Set(["COMPLETED", "FAILED", "CANCELLED", "BUDGET_EXHAUSTED"]);
const MOMENTS = [["training", "While it trains"], ["any time", "Whenever somebody asks"], ["prediction", "If rows are predicted"]];
export const isLoss = (name) => /loss|objective|distance|optimality|gradient/.test(name);
export const isCount = (name) => /^(updates|utilisation|staleness|aggregation rounds|peer |rounds to|parties|deviance|null deviance|dispersion)/.test(name);

export async function run(main, leaving, id) {
  const path = `/api/runs/${encodeURIComponent(id)}`;
  let state;
  try {
    state = await ask(path);
  } catch (problem) {
    main.append(el("p", { class: "panel problem" }, problem.message));
    return;
  }
  const head = el("section", { class: "panel" });
  const status = el("p", { class: "hidden", role: "status" });
  const tiles = el("div", { class: "tiles" });
  const quality = new Quality(), losses = new Curves("Loss", isLoss), scores = new Curves("Score", (name) => !isLoss(name) && !isCount(name));
  const privacy = el("section", { class: "panel" }), crossing = el("section", { class: "panel" });
  const prediction = predictions(path, id), tags = el("p", { class: "tags" });
  const tuned = el("section", { class: "panel", hidden: true }), health = el("section", { class: "panel" });
  const log = el("ol", { class: "log", tabindex: "0", "aria-label": "Events, newest first" });
  let epsilon;
  leaving.addEventListener("abort", () => { losses.close(); scores.close(); quality.close(); });
  if (state.algorithm === "explore") losses.panel.hidden = scores.panel.hidden = prediction.hidden = true; // nothing is trained
  main.append(head, status, tiles, el("div", { class: "columns" }, losses.panel, scores.panel), quality.panel, tuned, prediction, el("div", { class: "columns" }, privacy,
    el("section", { class: "panel" }, el("h2", {}, "Events"), log)), health, crossing,
    el("section", { class: "panel" }, el("details", {}, el("summary", {}, "Spec"), el("pre", { tabindex: "0" }, state.spec_yaml))));

  const tag = async (change) => {
    try {
      state = { ...state, ...(await ask(`${path}/tags`, { add: "", remove: "", ...change })) };
      notice("");
      show();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      notice(problem.message);
    }
  };
  const label = el("input", { id: "tag", size: "12", maxlength: "32", placeholder: "add a tag", "aria-label": "Add a tag" });
  label.addEventListener("keydown", (key) => {
    if (key.key !== "Enter" || !label.value.trim()) return;
    tag({ add: label.value.trim() });
    label.value = "";
  });
  const forget = async () => {
    if (!confirm(`Forget ${id}? Its record and its events are deleted. What was released about labels stays in the ledger.`)) return;
    try {
      await ask(`${path}/delete`, {});
      location.hash = "#/runs";
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      notice(problem.message);
    }
  };

  const act = (name) => async (click) => {
    click.target.disabled = true;
    try {
      state = { ...state, ...(await ask(`${path}/${name}`, {})) };
      notice("");
      show();
      if (name === "resume") follow();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      notice(problem.message);
    } finally {
      click.target.disabled = false;
      if (!click.target.isConnected) head.querySelector("#cancel, #resume, a.button")?.focus();
    }
  };

  function show() {
    const m = state.metrics, ended = ENDED.has(state.state);
    update(tags, state.tags.map((name) => el("span", { class: "tag", "data-key": name }, name,
      el("button", { class: "small quiet", "aria-label": `take off the tag ${name}`, onclick: () => tag({ remove: name }) }, "×"))), label);
    prediction.hidden = state.state !== "COMPLETED" && state.state !== "BUDGET_EXHAUSTED";
    update(head,
      el("div", { class: "title" }, el("h1", {}, state.run_id), chip(state.state), el("span", { class: "spacer" }),
        !ended && el("button", { class: "danger", id: "cancel", onclick: act("cancel") }, "Cancel"),
        ended && state.state !== "COMPLETED" && el("button", { class: "primary", id: "resume", onclick: act("resume") }, "Resume"),
        ended && el("button", { class: "danger quiet", id: "delete", onclick: forget }, "Delete"),
        el("a", { class: "button", href: `/runs/${encodeURIComponent(id)}/card`, target: "_blank", rel: "noopener" }, "Model card")),
      el("p", { class: "soft small" }, `${state.algorithm} with ${state.parties.join(", ")} · started ${day(state.created)}` +
        (state.started_by ? ` by ${state.started_by}` : "") + (state.attempt > 1 ? ` · attempt ${state.attempt}` : "") +
        (state.protocol ? ` · protocol ${state.protocol}` : "") +
        (state.queue_position ? ` · number ${state.queue_position} in the queue` : "")),
      el("progress", { max: state.steps || 1, value: state.step, "aria-label": `step ${state.step} of ${state.steps}` }),
      tags,
      state.reason && el("p", { class: `reason ${state.state === "PAUSED" ? "paused" : ""}` }, state.reason));
    if (status.textContent !== `${state.run_id} is ${state.state.toLowerCase()}`) status.textContent = `${state.run_id} is ${state.state.toLowerCase()}`;
    const left = !ended && state.step ? (m.seconds / state.step) * (state.steps - state.step) : undefined;
    const best = m["test accuracy"] !== undefined ? ["test accuracy", percent(m["test accuracy"])]
      : m["test r2"] !== undefined ? ["test R²", number(m["test r2"])]
      : m["training accuracy"] !== undefined ? ["training accuracy", percent(m["training accuracy"])]
      : ["loss", number(m["test loss"] ?? m["upper loss"] ?? m.objective)];
    quality.show(m);
    update(tiles, [
      best, ["ε of each label", number(epsilon)], ["step", `${number(state.step)} / ${number(state.steps)}`],
      ["rounds", number(m.rounds)], ["bytes crossed", bytes(m.bytes)],
      left === undefined ? ["time", duration(m.seconds)] : ["time left", duration(left)],
    ].map(([name, value]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name))));
  }

  async function showLedger() {
    const ledger = await ask(`${path}/ledger`);
    epsilon = ledger.entries.length ? ledger.epsilon : 0;
    const spent = typeof epsilon === "number" && ledger.budget ? epsilon / ledger.budget : 0;
    const released = () => [
      el("p", {}, "ε ", el("b", {}, number(ledger.epsilon)), ledger.delta ? ` at δ = ${number(ledger.delta)}` : "",
        ledger.budget ? ` of a budget of ${number(ledger.budget)}` : ", no budget set"),
      ledger.budget && el("progress", { class: spent > 0.999 ? "full" : "", max: 1, value: Math.min(1, spent), "aria-label": `${Math.round(100 * spent)} % of the budget spent` }),
      table([["Release type", ""], ["To", ""], ["Releases", "number"], ["Most of one label", "number"], ["ε", "number"]],
        ledger.releases.map((r) => [r.mechanism, r.recipients.join(", "), number(r.releases), number(r.largest_count), number(r.epsilon)]), "What was released about labels"),
      el("p", { class: "soft small" }, `${ledger.entries.length} ledger ${ledger.entries.length === 1 ? "entry" : "entries"}, head `,
        el("code", {}, ledger.entries.at(-1).hash.slice(0, 16)), ledger.broken ? "" : ", chain whole"),
    ];
    update(privacy, el("h2", {}, "Privacy of the labels"),
      ledger.broken && el("p", { class: "problem" }, `The ledger's chain is broken: ${ledger.broken}`),
      ledger.entries.length ? released() : el("p", { class: "empty" }, "Nothing has been released about labels"));
    show();
  }

  async function showCrossings() {
    const found = await ask(`${path}/crossings`);
    const fields = found.flatMap((statement) => statement.fields);
    update(crossing, el("h2", {}, "What leaves an organisation in this run"),
      MOMENTS.map(([moment, title]) => {
        const told = found.filter((statement) => statement.moment === moment);
        return told.length && [el("h3", {}, title), el("ul", { class: "statements" }, told.map((one) =>
          el("li", {}, el("b", {}, one.sender), ` ${one.text}.`)))];
      }).filter(Boolean),
      el("p", { class: "soft small" }, "Names, counts and choices are left out. What sums tell of rows: see the threat model."),
      el("details", {}, el("summary", {}, `The ${fields.length} fields of the protocol that carry it`),
        table([["Field", ""], ["Derived from", ""], ["Protection", ""], ["Seen in the clear by", ""]],
          fields.map((f) => [el("code", {}, f.field), f.derived_from, f.protection, f.seen_by]), "Fields of the protocol"),
        el("p", { class: "soft small" }, "From the manifest that the build checks against the protos.")));
  }

  async function showCoefficients() {
    const found = await ask(`${path}/coefficients`);
    tuned.hidden = !found.length;
    update(tuned, ...columnParts(found));
  }

  function note(event) {
    const measured = Object.entries(event.metrics).filter(([name]) => name.startsWith("test ") && !isDetail(name)).map(([name, value]) => `${name} ${number(value)}`);
    log.prepend(el("li", { class: event.kind }, el("time", { datetime: event.time }, clock(event.time)), el("span", { class: "kind" }, event.kind),
      el("span", { class: "what" }, [event.message, ...measured].join(" · "))));
    while (log.children.length > 500) log.lastChild.remove();
  }

  let source, last = 0;
  function follow() {
    source?.close();
    source = new EventSource(`${path}/events?after=${last}`);
    source.addEventListener("run", (message) => {
      const { event, run: newest } = JSON.parse(message.data);
      if (event.sequence <= last) return;
      last = event.sequence;
      state = { ...state, ...newest };
      note(event);
      losses.add(event);
      scores.add(event);
      if (!painting) painting = requestAnimationFrame(() => { painting = 0; show(); });
      if (event.kind === "state" || event.kind === "privacy") {
        showLedger().catch((problem) => notice(problem.message));
        if (event.kind === "state" && newest.state === "COMPLETED") showCoefficients().catch((problem) => notice(problem.message));
      }
    });
    source.addEventListener("end", () => source.close());
  }
  let painting = 0;
  leaving.addEventListener("abort", () => source?.close());

  show();
  follow();
  await showLedger();
  await showCrossings();
  every(10, leaving, async () => {
    const taking = new Set(state.parties);
    const found = (await ask("/api/parties")).filter((party) => taking.has(party.name));
    update(health, el("h2", {}, "Parties"), partyTable(found, state.tables));
    if (!ENDED.has(state.state)) await showLedger();
  });
}

// Predictions with the run's model: of rows by id, or of a whole table; shown, and to be kept as a file.
function predictions(path, id) {
  const shownRows = 50;
  const ids = el("textarea", { id: "ids", rows: "2", placeholder: "ids, separated by commas or lines; every row if left empty", "aria-label": "Rows to predict, by id" });
  const from = el("input", { id: "table", placeholder: "the training table", "aria-label": "Table" });
  const said = el("p", { class: "soft small", role: "status" }), found = el("div");
  const button = el("button", { id: "predict", class: "primary" }, "Predict");
  button.addEventListener("click", async () => {
    button.disabled = true;
    said.textContent = "Every party computes its share …";
    try {
      const { ids: names, scores, classes } = await ask(`${path}/predict`, { table: from.value, ids: ids.value });
      const columns = classes.length ? (scores[0]?.length === 1 ? classes.slice(-1) : classes) : [];
      const chosen = (row) => (classes.length ? (row.length === 1 ? classes[Number(row[0] > 0.5)] : classes[row.indexOf(Math.max(...row))]) : row[0]);
      const heads = ["id", "prediction", ...columns.map((name) => `score ${name}`)];
      const rows = names.map((name, i) => [name, chosen(scores[i]), ...(columns.length ? scores[i] : [])]);
      said.textContent = `${names.length} rows${names.length > shownRows ? `, the first ${shownRows} of them below` : ""}`;
      const file = new Blob([[heads, ...rows].map((cells) => cells.map(cell).join(",")).join("\n") + "\n"], { type: "text/csv" });
      update(found, el("p", {}, el("a", { class: "button", id: "csv", download: `${id}-predictions.csv`, href: URL.createObjectURL(file) }, "Save as CSV")),
        table(heads.map((name, i) => [name, i > 1 ? "number" : ""]), rows.slice(0, shownRows).map((cells) => cells.map((each) => (typeof each === "number" ? number(each) : each))), "Predictions"));
      notice("");
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      said.textContent = "";
      notice(problem.message);
    } finally {
      button.disabled = false;
    }
  });
  return el("section", { class: "panel", hidden: true }, el("h2", {}, "Predict"), el("div", { class: "predict" }, ids,
    el("div", { class: "actions" }, el("label", { class: "small" }, "Table ", from), button)), said, found);
}

const cell = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
