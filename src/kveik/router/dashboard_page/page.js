// The page: asks the router every two seconds, keeps the token for this tab, and says when nobody answers.

const PERIOD_MS = 2000;
const HIDDEN_PERIOD_MS = 30000; // the tab's title still tells when something is not well
const PATIENCE_MS = 10000;
const TOKEN = "kveik-admission-token";
const find = (id) => document.getElementById(id);

const page = { rows: [], sampleS: 3, startedS: null, lastS: null, asking: false, timer: null };

const column = (field) => (rows) => rows.map((row) => row[field]);
const plain = (text) => () => ({ text, factor: 1 });

function busiest(rows) {
  const most = new Map();
  for (const row of rows) {
    for (const [name, value] of Object.entries(row.in_flight)) most.set(name, Math.max(value, most.get(name) || 0));
  }
  const names = [...most.keys()].sort();
  if (names.length <= 8) return names.map((name) => ({ name, values: rows.map((row) => row.in_flight[name]) }));
  const top = [...names].sort((a, b) => most.get(b) - most.get(a)).slice(0, 7).sort();
  const rest = names.filter((name) => !top.includes(name));
  const lines = top.map((name) => ({ name, values: rows.map((row) => row.in_flight[name]) }));
  lines.push({ name: `${rest.length} others`, values: rows.map((row) => rest.reduce((sum, name) => sum + (row.in_flight[name] || 0), 0)) });
  return lines;
}

const several = (...named) => (rows) => named.map(([name, field]) => ({ name, values: column(field)(rows) }));

const CHARTS = [
  new LineChart("Requests", { lines: several(["ended", "requests_s"], ["failed", "errors_s"]), unit: plain("requests/s") }),
  new LineChart("Time to first token", {
    lines: several(["p50", "ttft_p50_s"], ["p95", "ttft_p95_s"]),
    unit: (top) => (top < 1 ? { text: "ms", factor: 1000 } : { text: "s", factor: 1 }),
  }),
  new LineChart("In flight", { lines: busiest, unit: plain("requests") }),
  new LineChart("Output", { lines: several(["output", "output_tokens_s"]), unit: plain("tokens/s") }),
  new LineChart("Prompts", { lines: several(["prompts", "prompt_tokens_s"]), unit: plain("tokens/s") }),
  new LineChart("Cached prompt tokens", {
    lines: several(["all", "cached_share"], ["expected", "expected_cached_share"], ["local", "local_hit_share"], ["external", "external_hit_share"]),
    unit: () => ({ text: "%", factor: 100 }), top: 1,
  }),
];
find("charts").append(...CHARTS.map((chart) => chart.node));

// -- asking ---------------------------------------------------------------------------------------

async function ask() {
  if (page.asking) return;
  page.asking = true;
  clearTimeout(page.timer);
  const given = token();
  try {
    const answer = await fetch(`fleet/status?since=${page.rows.length ? page.rows[page.rows.length - 1].number : 0}`, {
      headers: given ? { authorization: `Bearer ${given}` } : {},
      cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (answer.status === 401 || answer.status === 403) { askForToken(given); return; }
    if (!answer.ok) throw new Error(`it answers with status ${answer.status}`);
    take(await answer.json());
  } catch (error) {
    away(error);
  } finally {
    page.asking = false;
    if (find("gate").hidden) page.timer = setTimeout(ask, document.hidden ? HIDDEN_PERIOD_MS : PERIOD_MS);
  }
}

function take(status) {
  const again = page.startedS !== null && page.startedS !== status.router.started_s;
  if (again && page.rows.length) {
    // The rows of the router before stay; those of this one get numbers after them no more: ask for all.
    page.before = [...(page.before || []), ...page.rows].slice(-400).map((row) => ({ ...row, number: row.number - 1e9 }));
    page.rows = [];
  }
  page.startedS = status.router.started_s;
  page.lastS = Date.now() / 1000;
  page.sampleS = status.history.sample_s;
  const last = page.rows.length ? page.rows[page.rows.length - 1].number : 0;
  page.rows.push(...status.history.rows.filter((row) => row.number > last));
  page.rows = page.rows.slice(-400);
  say("live", again ? "Live: the router has started again" : "Live");
  document.body.classList.remove("stale");
  find("gate").hidden = true;
  find("content").hidden = false;
  find("forget").hidden = !token();
  draw(status);
}

function away(error) {
  const since = page.lastS === null ? "" : `, last answer at ${clock(page.lastS)}`;
  say("away", `The router does not answer${since}: trying again`);
  find("live").title = String(error.message || error);
  if (page.lastS !== null) document.body.classList.add("stale");
}

// Said aloud only when it changes.
function say(is, text) {
  const live = find("live");
  if (live.dataset.is !== is || live.firstChild.textContent !== text) {
    live.dataset.is = is;
    live.firstChild.textContent = text;
    live.title = "";
  }
}

// -- the token ------------------------------------------------------------------------------------

function token() {
  try { return sessionStorage.getItem(TOKEN) || ""; } catch { return page.token || ""; }
}

function keepToken(value) {
  page.token = value;
  try {
    if (value) sessionStorage.setItem(TOKEN, value); else sessionStorage.removeItem(TOKEN);
  } catch { /* storage is off: it lasts until the page is loaded again */ }
}

function askForToken(refused) {
  keepToken("");
  forgetData();
  find("gate").hidden = false;
  find("forget").hidden = true;
  const why = find("gate-why");
  why.textContent = refused ? "The router does not take this token." : "The router shows the fleet only to those who have its admission token.";
  why.className = refused ? "wrong" : "";
  if (refused) why.setAttribute("role", "alert"); else why.removeAttribute("role");
  find("token").value = "";
  find("token").focus();
  say("asking", "Waiting for the token");
}

function forgetData() {
  Object.assign(page, { rows: [], before: [], startedS: null, lastS: null });
  find("content").hidden = true;
  for (const id of ["verdict", "tiles", "events", "fleet", "router", "engines-note", "history-note", "engines-table", "tiers-table", "parts-table", "spoken"]) {
    find(id).replaceChildren();
    find(id).shown = undefined;
  }
  for (const chart of CHARTS) chart.clear();
  document.title = "Kveik";
}

find("gate-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = find("token").value.trim();
  if (!/^[\x21-\x7e]+$/.test(value)) {
    askForToken(true);
    return;
  }
  keepToken(value);
  ask();
});
find("forget").addEventListener("click", () => askForToken(""));
document.addEventListener("visibilitychange", () => { if (!document.hidden && find("gate").hidden) ask(); });

// -- drawing --------------------------------------------------------------------------------------

function draw(status) {
  const nowS = status.router.now_s;
  document.title = `${status.well ? "" : "▲ "}Kveik${status.fleet ? ` ${status.fleet}` : ""}`;
  show(find("fleet"), status.fleet, () => status.fleet);
  const router = `Router ${location.host}, version ${status.router.version}, policy ${status.router.policy}, up ${span(nowS - status.router.started_s)}`;
  show(find("router"), router, () => router);
  drawVerdict(status);
  drawTiles(status);
  const windowS = status.history.window_s;
  show(find("history-note"), windowS, () => `as this router measures it; rates and percentiles over ${windowS} s`);
  const rows = [...(page.before || []), ...page.rows];
  for (const chart of CHARTS) chart.show(rows, page.sampleS, nowS);
  const minute = `figures of requests that ended in the last ${span(status.totals.measured.window_s)}`;
  show(find("engines-note"), minute, () => minute);
  const engines = status.engines.map((engine) => ({ ...engine, nowS }));
  keepTable(find("engines-table"), "Engines of the fleet", ENGINE_COLUMNS, engines, (engine) => engine.id, "No engine is in the fleet.");
  drawNodes(status);
  drawEvents(status);
}

function drawVerdict(status) {
  const { troubles, warnings, notes, totals } = status;
  const kind = troubles.length ? "bad" : warnings.length ? "warn" : "good";
  const count = troubles.length === 1 ? "One thing is not well" : `${troubles.length} things are not well`;
  const title = troubles.length ? count : warnings.length ? "All is well, with warnings" : "All is well";
  show(find("verdict"), [troubles, warnings, notes, totals.simulated, totals.engines], () => [
    element("div", { class: `card verdict ${kind}` }, element("span", { class: "mark", "aria-hidden": "true" }), element("div", {}, element("h2", {}, title),
      element("ul", {}, ...[...troubles, ...warnings].map((text) => element("li", {}, text)), ...notes.map((text) => element("li", { class: "note" }, text))))),
    totals.simulated ? element("p", { class: "card simulated" }, simulated(totals)) : null,
  ]);
}

function simulated({ simulated: some, engines: all }) {
  const which = some < all ? `${some} of ${all} engines ${some === 1 ? "is" : "are"}` : all === 1 ? "The one engine is" : `All ${all} engines are`;
  return `${which} simulated: such an engine computes nothing, and its figures say nothing about real ones.`;
}

function drawTiles({ totals, router, nodes }) {
  const now = totals.measured;
  const hits = nodes.length ? `local ${words(share(totals.local_hit_share))}, external ${words(share(totals.external_hit_share))}` : "local and external: no watchdog reports";
  const tiles = [
    ["Engines ready", [String(totals.ready), `of ${totals.engines}`], `policy ${router.policy}`],
    ["Requests", rounded(now.requests_s, "requests/s"), `${digits(now.errors)} failed, ${digits(now.retries)} retries`],
    ["First token, p50", seconds(now.ttft_p50_s), `p95 ${words(seconds(now.ttft_p95_s))}`],
    ["Output", rounded(now.output_tokens_s, "tokens/s"), `prompts ${words(rounded(now.prompt_tokens_s, "tokens/s"))}`],
    ["In flight", rounded(totals.in_flight, "requests"), `${digits(router.waiting)} wait for a place`],
    ["Cached prompt tokens", share(now.cached_share), hits],
  ];
  show(find("tiles"), tiles, () => tiles.map(([name, value, more]) =>
    element("div", { class: "tile" }, element("dt", {}, name), element("dd", {}, ...figure(value)), element("dd", { class: "more" }, more))));
}

function drawNodes({ nodes }) {
  const silentOnes = new Set(nodes.filter((node) => node.silent).map((node) => node.node));
  const all = (field) => nodes.flatMap((node) => node[field].map((entry) => ({ ...entry, node: node.node, silent: silentOnes.has(node.node) })));
  const missing = nodes.length ? "Its nodes report none." : "No watchdog reports to this router.";
  keepTable(find("tiers-table"), "Tiers of the shared cache", TIER_COLUMNS, all("tiers"), (tier) => `${tier.node} ${tier.name}`, missing);
  keepTable(find("parts-table"), "Processes that supervisors keep", PART_COLUMNS, all("parts"), (part) => `${part.node} ${part.name}`, missing);
}

function drawEvents({ events }) {
  show(find("events"), events, () => (events.length ? [...events].reverse().map((event) => element("li", {},
    known(event.at_s) ? element("time", { datetime: new Date(event.at_s * 1000).toISOString() }, clock(event.at_s)) : element("span"),
    element("span", { class: "source" }, event.source), element("span", { class: "what" }, event.text)))
    : element("li", { class: "none" }, "Nothing has happened since this router started.")));
}

ask();
