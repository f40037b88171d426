// What a run tells of columns: coefficients of a model, or figures, bins and correlations that an exploration has found.
import { el, number, table } from "./page.js";

const FIRST = ["iv", "psi", "vif"], LEAST = ["bin ", "correlation "], SHOWN = 50;
const head = (name) => [name, "number"];

export function columnParts(found) {
  const explored = found.flatMap((party) => Object.entries(party.figures).map(([column, figures]) => [party.party, column, figures]));
  const modelled = found.some((party) => party.whole !== null || Object.keys(party.columns).length);
  return !explored.length || modelled ? coefficients(found) : figuresOf(explored, found);
}

function kept(found, width) {
  return found.filter((party) => party.kept)
    .map((party) => [party.party, el("span", { class: "soft" }, party.kept), ...Array(width).fill("–")]);
}

function coefficients(found) {
  const inferred = found.some((party) => Object.keys(party.inference).length);
  const inflated = found.some((party) => Object.values(party.figures).some((figures) => "vif" in figures));
  const told = (party, column) => {
    const known = party.inference[column];
    return [...(!inferred ? [] : known
      ? [number(known.standard_error), number(known.p_value), `${number(known.low)} to ${number(known.high)}`] : ["–", "–", "–"]),
      ...(inflated ? [number(party.figures[column]?.vif)] : [])];
  };
  const heads = ["Coefficient", ...(inferred ? ["Standard error", "p", "95 % interval"] : []), ...(inflated ? ["vif"] : [])];
  return [el("h2", {}, "Coefficients"), table([["Party", ""], ["Column", ""], ...heads.map(head)],
    [...found.flatMap((party) => [
      ...(party.whole === null ? [] : [[party.party, "all columns", number(party.whole), ...told(party, "")]]),
      ...Object.entries(party.columns).map(([column, value]) => [party.party, column, number(value), ...told(party, column)]),
    ]), ...kept(found, heads.length)], "Coefficients")];
}

function figuresOf(explored, found) {
  const there = new Set(explored.flatMap(([, , figures]) => Object.keys(figures)));
  const names = [...new Set([...FIRST, ...there])].filter((name) => there.has(name) && !LEAST.some((start) => name.startsWith(start)));
  const told = (figures, name) => (name in figures ? number(figures[name]) : "–");
  const bins = explored.flatMap(([party, column, figures]) => Object.keys(figures).filter((name) => /^bin \d+ share$/.test(name)).map((name) => {
    const bin = name.split(" ")[1], share = figures[name];
    return [party, column, bin, told(figures, `bin ${bin} up to`), el("meter", { min: 0, max: 1, value: share, "aria-label": `${number(share)} of the rows` }),
      number(share), told(figures, `bin ${bin} woe`)];
  }));
  const pairs = correlations(explored);
  return [el("h2", {}, "Columns"),
    table([["Party", ""], ["Column", ""], ...names.map(head)],
      [...explored.map(([party, column, figures]) => [party, column, ...names.map((name) => told(figures, name))]), ...kept(found, names.length)], "Columns"),
    ...(bins.length ? [el("details", {}, el("summary", {}, "Bins"),
      table([["Party", ""], ["Column", ""], ...["Bin", "Up to"].map(head), ["Rows", ""], ...["Share", "Weight of evidence"].map(head)], bins, "Bins"))] : []),
    ...(pairs.length ? [el("details", {}, el("summary", {}, pairs.length > SHOWN ? `Correlations: the ${SHOWN} strongest of ${pairs.length}` : "Correlations"),
      table([["Party", ""], ["Column", ""], ["With", ""], head("Correlation")], pairs.slice(0, SHOWN), "Correlations"))] : [])];
}

// Each two columns once, the strongest first; others' columns are told by number, and named where their party shares names.
function correlations(explored) {
  const place = (figures) => figures["correlation place"];
  const names = new Map(explored.map(([party, column, figures]) => [`${party} ${place(figures)}`, `${party} ${column}`]));
  const pairs = new Map();
  for (const [party, column, figures] of explored)
    for (const [name, value] of Object.entries(figures).filter(([name]) => name.startsWith("correlation with "))) {
      const other = name.slice("correlation with ".length), key = [`${party} ${place(figures)}`, other].sort().join("\n");
      if (!pairs.has(key)) pairs.set(key, [party, column, names.get(other) ?? other, value]);
    }
  return [...pairs.values()].sort((a, b) => Math.abs(b[3]) - Math.abs(a[3])).map(([...cells]) => [...cells.slice(0, 3), number(cells[3])]);
}
