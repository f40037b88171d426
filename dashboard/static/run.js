// One run: how it stands, its curves, what it released, what leaves, what happened.
import { Curves } from "./curves.js";
import { partyTable } from "./overview.js";
import { ask, bytes, chip, clock, day, duration, el, every, measured, notice, number, percent, table, Problem } from "./page.js";

const ENDED = new Set(["COMPLETED", "FAILED", "CANCELLED", "BUDGET_EXHAUSTED"]);
const isLoss = (name) => /loss|objective|distance|suboptimality|gradient/.test(name);

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
  const tiles = el("div", { class: "tiles" });
  const losses = new Curves("Loss", isLoss), scores = new Curves("Score on held-out rows", (name) => !isLoss(name));
  const privacy = el("section", { class: "panel" }), crossing = el("section", { class: "panel" });
  const health = el("section", { class: "panel" }), log = el("ol", { class: "log", tabindex: "0", "aria-label": "Events" });
  let epsilon;
  leaving.addEventListener("abort", () => { losses.close(); scores.close(); });
  main.append(head, tiles, el("div", { class: "columns" }, losses.panel, scores.panel), el("div", { class: "columns" }, privacy,
    el("section", { class: "panel" }, el("h2", {}, "Events"), log)), health, crossing,
    el("section", { class: "panel" }, el("details", {}, el("summary", {}, "Spec"), el("pre", {}, state.spec_yaml))));

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
    }
  };

  function show() {
    const m = state.metrics, ended = ENDED.has(state.state);
    head.replaceChildren(
      el("div", { class: "title" }, el("h1", {}, state.run_id), chip(state.state), el("span", { class: "spacer" }),
        !ended && el("button", { class: "danger", id: "cancel", onclick: act("cancel") }, "Cancel"),
        ended && state.state !== "COMPLETED" && el("button", { class: "primary", id: "resume", onclick: act("resume") }, "Resume"),
        el("a", { class: "button", href: `/runs/${encodeURIComponent(id)}/card`, target: "_blank", rel: "noopener" }, "Model card")),
      el("p", { class: "soft small" }, `${state.algorithm} with ${state.parties.join(", ")} · started ${day(state.created)}` +
        (state.attempt > 1 ? ` · attempt ${state.attempt}` : "")),
      el("progress", { max: state.steps || 1, value: state.step, "aria-label": "progress" }));
    if (state.reason) head.append(el("p", { class: `reason ${state.state === "PAUSED" ? "paused" : ""}` }, state.reason));
    const left = !ended && state.step ? (m.seconds / state.step) * (state.steps - state.step) : undefined;
    const best = m["test accuracy"] !== undefined ? ["test accuracy", percent(m["test accuracy"])]
      : m["test r2"] !== undefined ? ["test R²", number(m["test r2"])]
      : ["loss", number(m["test loss"] ?? m["upper loss"])];
    tiles.replaceChildren(...[
      best, ["ε of each label", number(epsilon)], ["step", `${number(state.step)} / ${number(state.steps)}`],
      ["rounds", number(m.rounds)], ["bytes crossed", bytes(m.bytes)],
      left === undefined ? ["time", duration(m.seconds)] : ["time left", duration(left)],
    ].map(([name, value]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name))));
  }

  async function showLedger() {
    const ledger = await ask(`${path}/ledger`);
    epsilon = ledger.entries.length ? ledger.epsilon : 0;
    const spent = typeof epsilon === "number" && ledger.budget ? epsilon / ledger.budget : 0;
    privacy.replaceChildren(el("h2", {}, "Privacy of the labels"));
    if (ledger.broken) privacy.append(el("p", { class: "problem" }, `The ledger's chain is broken: ${ledger.broken}`));
    if (!ledger.entries.length) privacy.append(el("p", { class: "empty" }, "Nothing has been released about labels"));
    else {
      privacy.append(
        el("p", {}, "ε ", el("b", {}, number(ledger.epsilon)), ledger.delta ? ` at δ = ${number(ledger.delta)}` : "",
          ledger.budget ? ` of a budget of ${number(ledger.budget)}` : ", no budget set"),
        ledger.budget && el("progress", { class: spent > 0.999 ? "full" : "", max: 1, value: Math.min(1, spent), "aria-label": "budget spent" }),
        table([["Release type", ""], ["To", ""], ["Releases", "number"], ["Most of one label", "number"], ["ε", "number"]],
          ledger.releases.map((r) => [r.mechanism, r.recipients.join(", "), number(r.releases), number(r.largest_count), number(r.epsilon)])),
        el("p", { class: "soft small" }, `${ledger.entries.length} ledger ${ledger.entries.length === 1 ? "entry" : "entries"}, head `,
          el("code", {}, ledger.entries.at(-1).hash.slice(0, 16)), ledger.broken ? "" : ", chain whole"));
    }
    show();
  }

  async function showCrossings() {
    const found = await ask(`${path}/crossings`);
    const wide = matchMedia("(min-width: 46rem)").matches;
    crossing.replaceChildren(el("details", { open: wide }, el("summary", {}, `What leaves an organisation in this run (${found.length} fields)`),
      table([["Field", ""], ["Derived from", ""], ["Protection", ""], ["Seen in the clear by", ""]],
        found.map((f) => [el("code", {}, f.field), f.derived_from, f.protection, f.seen_by])),
      el("p", { class: "soft small" }, "From the manifest that the build checks against the protos; names, counts and choices are left out. Never: features, labels, models.")));
  }

  function note(event) {
    const figures = Object.entries(measured(event)).filter(([name]) => name.startsWith("test ")).map(([name, value]) => `${name} ${number(value)}`);
    log.prepend(el("li", { class: event.kind }, el("time", { datetime: event.time }, clock(event.time)), el("span", { class: "kind" }, event.kind),
      el("span", { class: "what" }, [event.message, ...figures].join(" · "))));
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
      if (event.kind === "state" || event.kind === "privacy") showLedger().catch((problem) => notice(problem.message));
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
    health.replaceChildren(el("h2", {}, "Parties"), partyTable(found));
  });
}
