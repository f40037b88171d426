// What is deployed: which version answers, and what it has answered.
import { ask, day, el, every, number, table, update } from "./page.js";

const HEALTH = { SERVING: "up", OPENING: "odd", REFUSED: "down" };

export function deployments(main, leaving) {
  const place = el("section", { class: "panel" }, el("p", { class: "empty" }, "Loading …"));
  main.append(el("div", { class: "title" }, el("h1", {}, "Deployments")), place,
    el("p", { class: "soft small" }, "Rows and sums of the version that answers, since it was opened; requests that come together are summed together. Other programs ask at ",
      el("code", {}, "/api/deployments/NAME/predictions"), ", as ", el("a", { href: "/api/openapi.json" }, "/api/openapi.json"), " says."));
  every(5, leaving, async () => {
    const found = await ask("/api/deployments");
    update(place, found.length ? table(
      [["Name", ""], ["State", ""], ["Run", ""], ["Table", ""], ["Deployed", ""], ["Rows", "number"], ["Sums", "number"]],
      found.map((each) => Object.assign([
        el("span", {}, el("b", {}, each.name), el("br"), el("span", { class: "soft small" },
          `version ${each.version}${each.earlier_versions.length ? `, before it ${each.earlier_versions.join(", ")}` : ""}`)),
        el("span", {}, el("span", { class: `chip ${HEALTH[each.state]}` }, each.state.toLowerCase()),
          each.problem && el("span", { class: "small problem" }, el("br"), each.problem)),
        el("a", { href: `#/run/${encodeURIComponent(each.run_id)}` }, each.run_id),
        each.table || "of the training", el("span", {}, day(each.deployed), el("br"), el("span", { class: "soft small" }, `by ${each.deployed_by}`)),
        number(each.rows), number(each.sums),
      ], { key: each.name })), "What is deployed")
      : el("p", { class: "empty" }, "Nothing is deployed. ", el("code", {}, "parley deploy RUN --name NAME"), " keeps a model ready."));
  });
}
