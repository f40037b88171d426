// Elements, numbers and requests for the views. Text is always set as text, never as markup.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...present(children));
  return element;
}

const present = (children) => children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);

// Show these children, and leave what stays the same where it is: whoever has the focus keeps it.
export function update(place, ...children) {
  const fresh = present(children).map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  let old = place.firstChild;
  for (const node of fresh) {
    for (let later = old; later; later = later.nextSibling) {
      if (!isSame(later, node)) continue;
      while (old !== later) old = remove(old);
      break;
    }
    if (old && isSame(old, node)) {
      if (old !== node) change(old, node);
      old = old.nextSibling;
    } else place.insertBefore(node, old);
  }
  while (old) old = remove(old);
}

function remove(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

const isSame = (old, node) =>
  old.nodeName === node.nodeName && old.id === node.id && old.dataset?.key === node.dataset?.key;

function change(old, node) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!node.hasAttribute(name) && !(name === "open" || name === "disabled")) old.removeAttribute(name);
  for (const { name, value } of [...node.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  update(old, [...node.childNodes]);
}

export function table(columns, rows, caption) {
  const head = el("tr", {}, columns.map(([name, kind]) => el("th", { class: kind, scope: "col" }, name)));
  const body = rows.map((cells) =>
    el("tr", { "data-key": cells.key }, cells.map((cell, i) => el("td", { class: columns[i][1], "data-name": text(columns[i][0]) }, cell))));
  return el("div", { class: "wide" }, el("table", { class: "stack" }, caption && el("caption", { class: "hidden" }, caption),
    el("thead", {}, head), el("tbody", {}, body)));
}

const text = (name) => (name instanceof Node ? name.textContent : name);

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
