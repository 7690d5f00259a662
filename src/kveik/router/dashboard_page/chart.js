// Line charts: axes with units, a legend with the last values, and a cursor for mouse, touch and keys.

const MARGIN = { top: 10, right: 10, bottom: 22, left: 46 };
const SPAN_S = 600;

function ticks(top) {
  const rough = top / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const found = [];
  for (let n = 0; n * step <= top * 1.0001 || found.length < 2; n += 1) found.push(n * step);
  if (found[found.length - 1] < top) found.push(found.length * step);
  return found;
}

class LineChart {
  // `lines(rows)` gives [{name, values}], `unit(top)` gives {text, factor} for the axis.
  constructor(title, { lines, unit, top = 0, note = "" }) {
    Object.assign(this, { title, lines, unit, top, rows: [], at: null });
    this.heading = element("h3", {}, `${title} `, element("small"));
    this.note = note;
    this.legend = element("figcaption", {}, this.heading);
    this.plot = drawn("svg", { class: "plot", role: "img", tabindex: "0" });
    this.tip = element("div", { class: "tip", hidden: true });
    this.node = element("figure", { class: "card chart" }, this.legend, this.plot, this.tip);
    this.plot.addEventListener("pointermove", (event) => this.point(event.clientX));
    this.plot.addEventListener("pointerleave", () => this.leave());
    this.plot.addEventListener("blur", () => this.leave());
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  show(rows, sampleS, nowS) {
    Object.assign(this, { rows, sampleS, nowS });
    this.draw();
  }

  clear() {
    this.leave();
    this.rows = [];
    this.legend.replaceChildren(this.heading);
    this.plot.replaceChildren();
    this.plot.removeAttribute("aria-label");
    this.tip.replaceChildren();
  }

  draw() {
    const { width, height } = this.plot.getBoundingClientRect();
    if (!width || !this.nowS) return;
    this.size = { width, height };
    this.drawnLines = this.lines(this.rows);
    const highest = Math.max(this.top, ...this.drawnLines.flatMap(({ values }) => values.filter(known)));
    this.scale = this.unit(highest);
    const marks = ticks((highest || 1 / this.scale.factor) * this.scale.factor);
    this.marks = marks;
    this.high = marks[marks.length - 1] / this.scale.factor;
    const parts = [...this.axes(marks)];
    this.drawnLines.forEach((line, index) => parts.push(...this.line(line, index)));
    this.plot.replaceChildren(...parts);
    this.tell();
    if (this.at !== null) this.mark();
  }

  x(atS) {
    const share = 1 - (this.nowS - atS) / SPAN_S;
    return MARGIN.left + share * (this.size.width - MARGIN.left - MARGIN.right);
  }

  y(value) {
    return this.size.height - MARGIN.bottom - (value / this.high) * (this.size.height - MARGIN.top - MARGIN.bottom);
  }

  *axes(marks) {
    const { width, height } = this.size;
    for (const mark of marks) {
      const y = Math.round(this.y(mark / this.scale.factor)) + 0.5;
      yield drawn("line", { class: mark ? "grid" : "base", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y });
      yield drawn("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, digits(mark));
    }
    for (let atS = Math.ceil((this.nowS - SPAN_S + 20) / 120) * 120; atS <= this.nowS - 12; atS += 120) {
      yield drawn("text", { x: this.x(atS), y: height - 5, "text-anchor": "middle" }, clock(atS, false));
    }
  }

  *line({ values }, index) {
    const style = index % 8;
    for (const run of this.runs(values)) {
      const path = run.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      if (run.length === 1) {
        yield drawn("circle", { class: `dot f${style}`, cx: run[0][0], cy: run[0][1], r: 2.5 });
        continue;
      }
      if (index === 0) {
        const floor = this.y(0).toFixed(1);
        const closed = `${path}L${run[run.length - 1][0].toFixed(1)} ${floor}L${run[0][0].toFixed(1)} ${floor}Z`;
        yield drawn("path", { class: `area f${style}`, d: closed });
      }
      yield drawn("path", { class: `line c${style} d${index % 4}`, d: path });
    }
  }

  // Stretches without a hole: nothing is drawn where nothing was measured.
  runs(values) {
    const runs = [];
    let run = null;
    let lastS = -Infinity;
    this.rows.forEach((row, n) => {
      if (row.at_s < this.nowS - SPAN_S || !known(values[n])) { run = null; return; }
      if (run === null || row.at_s - lastS > 3 * this.sampleS) { run = []; runs.push(run); }
      run.push([this.x(row.at_s), this.y(values[n])]);
      lastS = row.at_s;
    });
    return runs;
  }

  tell() {
    const shown = this.drawnLines.map(({ name, values }) => [name, this.text(values[values.length - 1])]);
    show(this.heading.lastChild, [this.scale.text, this.note], () => `${this.scale.text}${this.note ? `, ${this.note}` : ""}`);
    const short = shown.length > 2; // the heading has the unit
    const keys = this.drawnLines.map((line, index) => this.keyOf(line.name, index, short ? shown[index][1].split(" ")[0] : shown[index][1]));
    this.legend.replaceChildren(this.heading, ...keys);
    const now = shown.map(([name, text]) => `${name} ${text}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.title}, ${this.scale.text}, over ten minutes. Last: ${now || "nothing yet"}. Arrow keys read values.`);
  }

  text(value) {
    return known(value) ? `${digits(value * this.scale.factor)} ${this.scale.text}` : NONE;
  }

  keyOf(name, index, text) {
    const sample = drawn("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" },
      drawn("line", { class: `line c${index % 8} d${index % 4}`, x1: 1, x2: 21, y1: 5, y2: 5 }));
    return element("span", { class: "key" }, sample, element("span", {}, name), element("b", {}, text));
  }

  point(clientX) {
    const x = clientX - this.plot.getBoundingClientRect().left;
    let best = null;
    this.rows.forEach((row, n) => {
      if (row.at_s < this.nowS - SPAN_S) return;
      const gap = Math.abs(this.x(row.at_s) - x);
      if (best === null || gap < best.gap) best = { n, gap };
    });
    if (best) this.choose(this.rows[best.n].number, false);
  }

  key(event) {
    if (event.key === "Escape") { this.leave(); return; }
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e6, End: 1e6 };
    if (!(event.key in steps) || !this.rows.length) return;
    event.preventDefault();
    const found = this.rows.findIndex((row) => row.number === this.at);
    const from = found >= 0 ? found : this.rows.length;
    const to = Math.min(this.rows.length - 1, Math.max(0, from + steps[event.key]));
    this.choose(this.rows[to].number, true);
  }

  choose(number, aloud) {
    this.at = number;
    this.mark();
    if (aloud) document.getElementById("spoken").textContent = this.tip.innerText.replace(/\n+/g, ", ");
  }

  leave() {
    this.at = null;
    this.tip.hidden = true;
    for (const old of this.plot.querySelectorAll(".marked")) old.remove();
  }

  mark() {
    for (const old of this.plot.querySelectorAll(".marked")) old.remove();
    const n = this.rows.findIndex((row) => row.number === this.at);
    if (n < 0 || !this.size) { this.leave(); return; }
    const x = this.x(this.rows[n].at_s);
    const bottom = this.size.height - MARGIN.bottom;
    this.plot.append(drawn("line", { class: "cursor marked", x1: x, x2: x, y1: MARGIN.top, y2: bottom }));
    this.drawnLines.forEach(({ values }, index) => {
      if (known(values[n])) this.plot.append(drawn("circle", { class: `dot marked f${index % 8}`, cx: x, cy: this.y(values[n]), r: 4 }));
    });
    this.tip.replaceChildren(
      element("small", {}, clock(this.rows[n].at_s)),
      ...this.drawnLines.map(({ name, values }, index) => this.keyOf(name, index, this.text(values[n]))),
    );
    this.tip.hidden = false;
    const [plot, card] = [this.plot.getBoundingClientRect(), this.node.getBoundingClientRect()];
    const left = plot.left - card.left + x;
    const wide = this.tip.offsetWidth;
    const beside = left + 14 + wide > card.width ? left - wide - 14 : left + 14;
    this.tip.style.left = `${Math.max(4, beside)}px`;
    this.tip.style.top = `${plot.top - card.top + 4}px`;
  }
}
