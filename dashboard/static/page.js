// Elements, numbers and requests for the views. Text is always set as text, never as markup.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function table(columns, rows) {
  const head = el("tr", {}, columns.map(([name, kind]) => el("th", { class: kind }, name)));
  const body = rows.map((cells) =>
    el("tr", {}, cells.map((cell, i) => el("td", { class: columns[i][1], "data-name": columns[i][0] }, cell))));
  return el("div", { class: "wide" }, el("table", { class: "stack" }, el("thead", {}, head), el("tbody", {}, body)));
}

export const chip = (state) =>
  el("span", { class: `chip ${state}` }, state.toLowerCase().replace("_", " "));

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value === "inf" ? "∞" : value;
  if (Number.isInteger(value)) return value.toLocaleString("en-GB");
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(2).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(4)));
}

export const percent = (value) => (value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);

export function bytes(value) {
  if (value === undefined) return "–";
  let scaled = value, unit = "B";
  for (const next of ["kB", "MB", "GB", "TB"]) {
    if (scaled < 1000) break;
    [scaled, unit] = [scaled / 1000, next];
  }
  return `${scaled < 10 && unit !== "B" ? scaled.toFixed(1) : Math.round(scaled)} ${unit}`;
}

export function duration(seconds) {
  if (seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// What an event measured of the model. Events that 0.1.0 wrote have no body and mix it with the totals.
const TOTALS = new Set(["rounds", "bytes", "label releases", "seconds"]);
export function measured(event) {
  if (event.body) return event.body.measured ?? {};
  return Object.fromEntries(Object.entries(event.metrics).filter(([name]) => !TOTALS.has(name)));
}

export const clock = (text) => new Date(text).toLocaleTimeString("en-GB");
export const day = (text) =>
  new Date(text).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export function notice(message) {
  const place = document.getElementById("notice");
  place.textContent = message;
  place.hidden = !message;
}

export class Problem extends Error {}

export async function ask(path, body) {
  const options = body === undefined
    ? {}
    : { method: "POST", headers: { "x-parley": "1", "content-type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Problem("The coordinator does not answer: is it running?");
  }
  if (answer.status === 401) {
    location.reload(); // the server answers with the login form
    throw new Problem("Log in again.");
  }
  const content = await answer.json().catch(() => ({ message: `The coordinator answered ${answer.status}.` }));
  if (!answer.ok) throw new Problem(content.reason ? `${content.message} [${content.reason}]` : content.message);
  return content;
}

// Call now and every `seconds` until the view is left; what goes wrong is shown and does not end it.
export function every(seconds, leaving, task) {
  const turn = async () => {
    try {
      await task();
      notice("");
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      notice(problem.message);
    } finally {
      if (!leaving.aborted) setTimeout(() => leaving.aborted || turn(), 1000 * seconds);
    }
  };
  return turn();
}
