// A spec, pasted or uploaded, checked line by line while it is written, and started.
import { ask, bytes, el, notice, number, Problem } from "./page.js";

const KEPT = "parley spec";

export function start(main, leaving) {
  const area = el("textarea", { id: "spec", spellcheck: "false", autocapitalize: "off", "aria-label": "Spec", placeholder: "name: my-run\nparties: [bank, shop, telco]\ntrain:\n  algorithm: bambi" });
  const gutter = el("pre", { "aria-hidden": "true" });
  const problems = el("ul", { class: "problems", "aria-live": "polite" });
  const button = el("button", { class: "primary", id: "start", disabled: true }, "Start run");
  const file = el("input", { type: "file", id: "file", accept: ".yaml,.yml,text/*", hidden: true });
  const verdict = el("span", { class: "soft", id: "verdict" });
  main.append(el("div", { class: "title" }, el("h1", {}, "New run")), el("section", { class: "panel" },
    el("div", { class: "editor" }, gutter, area), problems,
    el("div", { class: "actions" }, button, el("button", { onclick: () => file.click() }, "Upload a file"), file, verdict),
    el("p", { class: "soft small" }, "Every field: ", el("code", {}, "parley run fields"), ". The parties' own policies decide whether they take part.")));

  let bad = new Set(), turn = 0, request = crypto.randomUUID?.() ?? String(Math.random());
  area.value = sessionStorage.getItem(KEPT) ?? "";

  function number() {
    const lines = area.value.split("\n").length;
    gutter.replaceChildren(...Array.from({ length: lines }, (_, i) => el(bad.has(i + 1) ? "b" : "span", {}, `${i + 1}\n`)));
    gutter.scrollTop = area.scrollTop;
  }

  function goTo(line) {
    const lines = area.value.split("\n");
    const from = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    area.focus();
    area.setSelectionRange(from, from + (lines[line - 1] ?? "").length);
  }

  async function check() {
    const mine = ++turn;
    const text = area.value;
    request = crypto.randomUUID?.() ?? String(Math.random());
    if (!text.trim()) {
      bad = new Set();
      problems.replaceChildren();
      verdict.textContent = "";
      button.disabled = true;
      number();
      return;
    }
    let found, forecast;
    try {
      ({ problems: found, forecast } = await ask("/api/check", { spec: text }));
    } catch (problem) {
      notice(problem.message);
      return;
    }
    if (mine !== turn || leaving.aborted) return; // a newer text is being checked
    notice("");
    bad = new Set(found.map((problem) => problem.line));
    problems.replaceChildren(...found.map((problem) => el("li", {},
      problem.line ? el("button", { onclick: () => goTo(problem.line) }, `line ${problem.line}`) : "",
      problem.field && el("code", {}, `${problem.field}: `), problem.message)));
    verdict.textContent = found.length ? `${found.length} to correct`
      : forecast ? `The spec is valid: at most ${number(forecast.rounds)} round trips and ${bytes(forecast.sent_bytes + forecast.received_bytes + forecast.peer_bytes)}` : "The spec is valid";
    button.disabled = found.length > 0;
    number();
  }

  let waiting;
  area.addEventListener("input", () => {
    sessionStorage.setItem(KEPT, area.value);
    number();
    button.disabled = true;
    clearTimeout(waiting);
    waiting = setTimeout(check, 300);
  });
  area.addEventListener("scroll", () => { gutter.scrollTop = area.scrollTop; });
  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    area.value = await file.files[0].text();
    file.value = "";
    area.dispatchEvent(new Event("input"));
  });
  button.addEventListener("click", async () => {
    button.disabled = true;
    verdict.textContent = "Asking every party …";
    try {
      const run = await ask("/api/runs", { spec: area.value, request_id: request });
      notice("");
      sessionStorage.removeItem(KEPT);
      location.hash = `#/run/${encodeURIComponent(run.run_id)}`;
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      notice(problem.message);
      verdict.textContent = "Not started";
      button.disabled = false;
    }
  });
  check();
}
