// Which view is shown: the part of the address after # says it.
import { compare } from "./compare.js";
import { deployments } from "./deployments.js";
import { start } from "./new.js";
import { audit, parties, runs } from "./overview.js";
import { ask, notice } from "./page.js";
import { run } from "./run.js";

let leaving = new AbortController();

function show() {
  leaving.abort();
  leaving = new AbortController();
  notice("");
  const [, view = "", id = ""] = location.hash.split("/");
  const main = document.getElementById("main");
  main.replaceChildren();
  const chosen = { audit: "audit", deployments: "deployments", parties: "parties", new: "new" }[view] ?? "runs";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === chosen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = view === "run" ? `${decodeURIComponent(id)} · Parley` : "Parley";
  scrollTo(0, 0);
  if (view === "run" && id) run(main, leaving.signal, decodeURIComponent(id));
  else if (view === "compare" && id) compare(main, leaving.signal, id.split(",").map(decodeURIComponent));
  else if (view === "new") start(main, leaving.signal);
  else if (view === "parties") parties(main, leaving.signal);
  else if (view === "deployments") deployments(main, leaving.signal);
  else if (view === "audit") audit(main, leaving.signal);
  else runs(main, leaving.signal);
}

document.getElementById("logout").addEventListener("click", async () => {
  await ask("/logout", {});
  location.replace("/");
});
addEventListener("hashchange", show);
show();
