// The tables. A column is {name, unit, number, key(row), cell(row)}: the cell is made anew when its key changes.

const GOOD = new Set(["ready", "on", "read-only"]);
const BAD = new Set(["isolated", "lost", "out", "hung", "half-dead", "dead", "failed", "not in the fleet"]);
const WARN = new Set(["announced", "draining", "busy", "starting", "waiting", "stopping", "degraded"]);

function chip(word) {
  const kind = GOOD.has(word) ? "good" : BAD.has(word) ? "bad" : WARN.has(word) ? "warn" : "idle";
  return element("span", { class: `chip ${kind}` }, word);
}

const small = (...text) => element("small", {}, ...text);
const none = (why) => element("span", { class: "none", title: why }, NONE);

function meter(value) {
  const bar = drawn("svg", { class: `meter${value >= 0.9 ? " high" : ""}`, viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
  bar.append(drawn("rect", { width: Math.max(0, Math.min(100, value * 100)), height: 8 }));
  return bar;
}

function keepTable(table, caption, columns, rows, idOf, empty) {
  if (!table.tHead) {
    table.append(element("caption", { class: "unseen" }, caption), element("thead"), element("tbody"));
    table.tHead.append(element("tr", {}, ...columns.map(({ name, unit, number }) =>
      element("th", { scope: "col", class: number ? "n" : null }, name, unit ? small(unit) : null))));
  }
  const body = table.tBodies[0];
  const old = new Map([...body.rows].map((row) => [row.dataset.id, row]));
  const kept = rows.map((row) => {
    const id = `=${idOf(row)}`;
    const line = old.get(id) || newLine(columns, id);
    columns.forEach((column, n) => show(line.cells[n], column.key(row), () => column.cell(row)));
    return line;
  });
  if (!kept.length) kept.push(old.get("empty") || element("tr", { "data-id": "empty" }, element("td", { colspan: columns.length, class: "empty" })));
  if (!rows.length) show(kept[0].cells[0], empty, () => empty);
  if (kept.length !== body.rows.length || kept.some((line, n) => body.rows[n] !== line)) body.replaceChildren(...kept);
}

function newLine(columns, id) {
  return element("tr", { "data-id": id }, ...columns.map(({ name, unit, number, wide }, n) => n
    ? element("td", { class: number ? "n" : wide ? "why" : null, "data-label": unit ? `${name}, ${unit}` : name })
    : element("th", { scope: "row" })));
}

const named = (what, tag) => element("span", { class: "named" }, what, tag ? element("span", { class: "tag" }, tag) : null);
const reported = (engine, field) => (engine.report ? engine.report[field] : null);
const silent = (engine) => engine.report_age_s !== null && engine.report_age_s > 10;
const unreported = "no watchdog reports this engine";

function engineState(engine, nowS) {
  const since = known(engine.since_s) ? `since ${day(engine.since_s, nowS)}` : "";
  const more = [];
  if (engine.share < 1 && engine.well) more.push(`slow start, ${words(share(engine.share))} of its load`);
  if (engine.failures_in_a_row) more.push(`${engine.failures_in_a_row} failures in a row`);
  return { since, more: more.join("; ") };
}

function condition(engine) {
  if (!engine.report) return small(unreported);
  const said = [named(chip(engine.report.condition), engine.report.degraded && "degraded")];
  if (engine.report.degraded) said.push(small(engine.report.degraded));
  if (engine.report.why && engine.report.condition !== "ready") said.push(small(engine.report.why));
  if (silent(engine)) said.push(small(`as reported ${span(engine.report_age_s)} ago`));
  return said;
}

const number = (name, unit, value, text) => ({
  name, unit, number: true, key: (row) => [value(row)],
  cell: (row) => (known(value(row)) ? text(value(row)) : none(unreported)),
});

const ENGINE_COLUMNS = [
  {
    name: "Engine", key: (e) => [e.id, e.url, e.models, e.simulated, e.node],
    cell: (e) => [named(e.id, e.simulated && "simulated"), small(e.models.join(", ") || "serves no model yet"),
      e.url ? small(e.url) : null, e.node ? small(`node ${e.node}`) : null],
  },
  {
    name: "State", wide: true, key: (e) => [e.state, e.why, engineState(e, e.nowS)],
    cell: (e) => {
      const { since, more } = engineState(e, e.nowS);
      return element("span", {}, chip(e.state === "gone" ? "not in the fleet" : e.state), since ? small(since) : null, e.why ? small(e.why) : null, more ? small(more) : null);
    },
  },
  {
    name: "Condition", wide: true, key: (e) => [e.report && [e.report.condition, e.report.why, e.report.degraded], silent(e) && span(e.report_age_s)],
    cell: (e) => element("span", {}, ...[condition(e)].flat()),
  },
  {
    name: "In flight", unit: "requests", number: true, key: (e) => [e.in_flight, reported(e, "running"), reported(e, "waiting")],
    cell: (e) => element("span", {}, digits(e.in_flight), known(reported(e, "running"))
      ? small(`${digits(e.report.running)} run, ${digits(e.report.waiting || 0)} wait`) : null),
  },
  {
    name: "KV use", unit: "of its cache", number: true, key: (e) => [reported(e, "kv_use"), words(bytes(reported(e, "resident_bytes")))],
    cell: (e) => (known(reported(e, "kv_use")) ? element("span", {}, words(share(e.report.kv_use)), meter(e.report.kv_use),
      known(e.report.resident_bytes) ? small(`memory ${words(bytes(e.report.resident_bytes))}`) : null) : none(unreported)),
  },
  {
    name: "Prompt hits", unit: "local / external", number: true,
    key: (e) => [reported(e, "local_hit_share"), reported(e, "external_hit_share"), e.measured.cached_share, e.measured.expected_cached_share],
    cell: (e) => element("span", {}, `${words(share(reported(e, "local_hit_share")))} / ${words(share(reported(e, "external_hit_share")))}`,
      known(e.measured.cached_share) ? small(`all ${words(share(e.measured.cached_share))}`) : null,
      known(e.measured.expected_cached_share) ? small(`expected ${words(share(e.measured.expected_cached_share))}`) : null),
  },
  {
    name: "First token", unit: "p50 / p95", number: true, key: (e) => [e.measured.ttft_p50_s, e.measured.ttft_p95_s],
    cell: (e) => `${words(seconds(e.measured.ttft_p50_s))} / ${words(seconds(e.measured.ttft_p95_s))}`,
  },
  {
    name: "Output", unit: "tokens/s", number: true, key: (e) => [reported(e, "output_tokens_s"), e.measured.output_tokens_s, reported(e, "acceptance")],
    cell: (e) => element("span", {}, digits(reported(e, "output_tokens_s") ?? e.measured.output_tokens_s),
      known(reported(e, "acceptance")) ? small(`drafts taken ${words(share(e.report.acceptance))}`) : null),
  },
  {
    name: "Requests", unit: "per s", number: true, key: (e) => [e.measured.requests_s, e.measured.errors, e.measured.retries],
    cell: (e) => element("span", {}, digits(e.measured.requests_s), small(`${digits(e.measured.errors)} failed`), e.measured.retries ? small(`${digits(e.measured.retries)} retries`) : null),
  },
  number("Restarts", "so far", (e) => reported(e, "restarts"), digits),
];

const TIER_COLUMNS = [
  { name: "Tier", key: (t) => [t.name, t.node], cell: (t) => [t.name, small(`node ${t.node}`)] },
  {
    name: "State", wide: true, key: (t) => [t.state, t.silent],
    cell: (t) => element("span", {}, chip(GOOD.has(t.state) ? t.state : "out"), GOOD.has(t.state) ? null : small(t.state), t.silent ? small("as last reported") : null),
  },
  { name: "KV blocks", number: true, key: (t) => [t.blocks], cell: (t) => (known(t.blocks) ? digits(t.blocks) : none()) },
  {
    name: "Size", unit: "of its limit", number: true, key: (t) => [t.bytes, t.bytes_max],
    cell: (t) => element("span", {}, words(bytes(t.bytes)), t.bytes_max ? small(`of ${words(bytes(t.bytes_max))}`) : null,
      known(t.bytes) && t.bytes_max ? meter(t.bytes / t.bytes_max) : null),
  },
  {
    name: "Rates", unit: "read, written", number: true, key: (t) => [t.read_bytes_s, t.write_bytes_s],
    cell: (t) => element("span", {}, rate(t.read_bytes_s), element("br"), rate(t.write_bytes_s)),
  },
];

const rate = (value) => (known(value) ? `${words(bytes(value))}/s` : NONE);

const PART_COLUMNS = [
  { name: "Process", key: (p) => [p.name, p.node, p.kind], cell: (p) => [p.name, small(`${p.kind}, node ${p.node}`)] },
  { name: "State", wide: true, key: (p) => [p.state, p.why, p.silent], cell: (p) => element("span", {}, chip(p.state), p.why ? small(p.why) : null, p.silent ? small("as last reported") : null) },
  { name: "Restarts", unit: "so far", number: true, key: (p) => [p.restarts], cell: (p) => digits(p.restarts) },
];
