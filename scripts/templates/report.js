"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
// A row has a cell per pair: with many pairs, fewer rows make a page that still answers at once.
const PAGE = Math.max(25, Math.min(200, Math.floor(8000 / data.columns.length)));
const state = { language: "en", search: "", outcome: "", page: 0 };

function t(key, values = {}) {
  return data.texts[state.language][key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// The address after # holds what is looked at: it can be sent on, and works without a server.
function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  state.search = query.get("search") || "";
  state.outcome = query.get("outcome") || "";
  if (query.get("lang") in data.texts) state.language = query.get("lang");
  return query;
}

function writeAddress(extra = {}) {
  const query = new URLSearchParams();
  if (state.language !== "en") query.set("lang", state.language);
  if (state.search) query.set("search", state.search);
  if (state.outcome) query.set("outcome", state.outcome);
  for (const [name, value] of Object.entries(extra)) query.set(name, value);
  history.replaceState(null, "", "#" + query);
}

function translate() {
  document.documentElement.lang = state.language;
  for (const node of document.querySelectorAll("[data-t]")) {
    const values = JSON.parse(node.dataset.v || "{}");
    if (values.verdict) values.verdict = t("verdict." + values.verdict);
    node.textContent = t(node.dataset.t, values);
  }
  for (const node of document.querySelectorAll("[data-en]")) node.textContent = node.dataset[state.language];
  for (const node of document.querySelectorAll("[data-placeholder]")) node.placeholder = t(node.dataset.placeholder);
  document.title = data.titles[state.language];
  $("language").value = state.language;
  drawOutcomes();
  drawCases();
}

// A case is [file, class, name, outcome letters (one per column), milliseconds per column, messages by column].
const isGood = (letters) => /^[p.]*$/.test(letters);
const order = data.cases.map((_, index) => index).sort((a, b) => isGood(data.cases[a][3]) - isGood(data.cases[b][3]) || a - b);

function drawOutcomes() {
  const counts = {};
  for (const entry of data.cases) for (const letter of new Set(entry[3])) counts[letter] = (counts[letter] || 0) + 1;
  const choices = [["", t("page.all")], ["!", t("page.not-passed")]];
  for (const [letter, name] of Object.entries(data.letters))
    if (counts[letter]) choices.push([letter, `${t("outcome." + name)} (${counts[letter]})`]);
  $("outcome").replaceChildren(...choices.map(([value, text]) => element("option", text, { value })));
  $("outcome").value = state.outcome;
}

function found() {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  return order.filter((index) => {
    const [file, cls, name, letters] = data.cases[index];
    if (state.outcome === "!" ? isGood(letters) : state.outcome && !letters.includes(state.outcome)) return false;
    const text = `${data.files[file]} ${cls}.${name}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

function drawCases() {
  const matches = found();
  const pages = Math.max(1, Math.ceil(matches.length / PAGE));
  state.page = Math.min(state.page, pages - 1);
  $("count").textContent = t("page.count", { number: matches.length, all: data.cases.length });
  $("page").textContent = t("page.page", { number: state.page + 1, all: pages });
  $("previous").disabled = state.page === 0;
  $("next").disabled = state.page === pages - 1;
  if (!$("cases-details").open) return;
  const head = element("tr");
  head.append(element("th", t("cases.case"), { scope: "col" }));
  for (const label of data.columns) head.append(element("th", label, { scope: "col" }));
  $("cases-table").tHead.replaceChildren(head);
  const rows = matches.slice(state.page * PAGE, (state.page + 1) * PAGE).map((index) => {
    const [file, cls, name, letters, times] = data.cases[index];
    const row = element("tr");
    const title = element("th", "", { scope: "row" });
    title.append(element("small", data.files[file]), document.createTextNode(`${cls}.${name}`));
    row.append(title);
    for (let column = 0; column < data.columns.length; column++) {
      const cell = element("td");
      const outcome = data.letters[letters[column]];
      if (outcome) {
        const button = element("button", `${data.marks[outcome]} ${t("outcome." + outcome)}`,
          { type: "button", "data-case": `${index}-${column}`, class: data.tones[outcome] });
        if (times[column] !== null && times[column] !== undefined) button.append(element("small", `${times[column]} ms`));
        cell.append(button);
      } else cell.append(element("span", "–", { class: "none", title: t("page.absent") }));
      row.append(cell);
    }
    return row;
  });
  $("cases-table").tBodies[0].replaceChildren(...rows);
}

let opener = null;
function open(title, parts, address) {
  $("details-heading").textContent = title;
  $("details-body").replaceChildren(...parts);
  writeAddress(address);
  if (!$("details").open) {
    opener = document.activeElement;
    $("details").showModal();
  }
  $("details-heading").focus();
}

function openCase(index, column) {
  const entry = data.cases[index];
  if (!entry || !data.columns[column]) return;
  const [file, cls, name, letters, times, messages] = entry;
  const outcome = data.letters[letters[column]];
  const parts = [element("p", `${data.files[file]}`),
    element("p", outcome ? `${data.marks[outcome]} ${t("outcome." + outcome)}` : t("page.absent"), { class: data.tones[outcome] || "none" })];
  if (times[column] !== null && times[column] !== undefined) parts.push(element("p", `${times[column]} ms`));
  if (messages[column]) parts.push(element("pre", messages[column]));
  const across = element("ul");
  data.columns.forEach((label, other) => {
    const its = data.letters[letters[other]];
    across.append(element("li", `${label}: ${its ? t("outcome." + its) : "–"}`));
  });
  parts.push(element("h3", t("page.across")), across);
  open(`${data.columns[column]}: ${cls}.${name}`, parts, { case: `${index}-${column}` });
}

function openRun(column, file) {
  const run = data.runs[`${column}-${file}`];
  if (!run) return;
  const parts = [element("p", `${t("state." + run.state)}: ${run.tests}/${run.expected ?? "?"}${run.reason ? " – " + run.reason : ""}`),
    element("pre", run.command + (run.said ? `\n${run.said}` : ""))];
  for (const finding of run.findings) parts.push(element("p", finding));
  if (run.stacks) parts.push(element("pre", run.stacks));
  if (run.tail) parts.push(element("h3", t("page.tail")), element("pre", run.tail));
  const links = element("p");
  if (run.log) links.append(element("a", t("runs.log"), { href: run.log }));
  if (run.patch) links.append(document.createTextNode(" "), element("a", run.patch, { href: `#patch-${data.columns[column]}`, "data-closes": "" }));
  parts.push(links);
  open(`${data.columns[column]}: ${data.files[file]}`, parts, { run: `${column}-${file}` });
}

function fromAddress() {
  const query = readAddress();
  $("search").value = state.search;
  translate();
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") target.open = true;
  if (state.search || state.outcome || query.has("case")) $("cases-details").open = true;
  const [first, second] = (query.get("case") || query.get("run") || "").split("-").map(Number);
  if (query.has("case")) openCase(first, second);
  else if (query.has("run")) openRun(first, second);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-case], [data-run]");
  if (event.target.closest("[data-closes]")) $("details").close();
  if (!button) return;
  const [first, second] = (button.dataset.case || button.dataset.run).split("-").map(Number);
  if (button.dataset.case) openCase(first, second);
  else openRun(first, second);
});
$("search").addEventListener("input", (event) => { state.search = event.target.value; state.page = 0; writeAddress(); drawCases(); });
$("outcome").addEventListener("change", (event) => { state.outcome = event.target.value; state.page = 0; writeAddress(); drawCases(); });
$("language").addEventListener("change", (event) => { state.language = event.target.value; writeAddress(); translate(); });
$("previous").addEventListener("click", () => { state.page -= 1; drawCases(); });
$("next").addEventListener("click", () => { state.page += 1; drawCases(); });
$("cases-details").addEventListener("toggle", drawCases);
$("close").addEventListener("click", () => $("details").close());
$("details").addEventListener("close", () => { if (location.hash.includes("case=") || location.hash.includes("run=")) writeAddress(); if (opener) opener.focus(); });
addEventListener("hashchange", fromAddress);
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((node) => { node.open = true; });
  drawCases();
});
fromAddress();
