"use strict";
// The viewer of a timeline. `meta` says what the columns are; page.html has the elements.
// All words of the file come from other processes: they become text, never HTML.

(async () => {
  const $ = (id) => document.getElementById(id);
  const meta = JSON.parse($("meta").textContent);
  const columns = await unpack($("data").textContent);
  const view = $("view"), canvas = $("canvas"), pen = canvas.getContext("2d");
  const rows = meta.lanes;  // {rank, name, from, to}: the slices of a lane, by begin
  const rowHeight = rows.length > 60 ? 12 : 18;
  const axisHeight = 22;
  const span = Math.max(meta.span, 1000);
  const show = { from: 0, to: span };
  let matched = null;  // Uint8Array by slice, while something is searched
  let matches = [];
  let chosen = -1;
  let left = 120, width = 0, height = 0, colours = {}, waiting = {};

  // ---- the data ----

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const whole = await new Response(stream).arrayBuffer();
    const kinds = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i2: Int16Array, u1: Uint8Array };
    const found = {};
    let at = 0;
    for (const [name, kind, count] of meta.columns) {
      const size = kinds[kind].BYTES_PER_ELEMENT * count;
      found[name] = new kinds[kind](whole.slice(at, at + size));
      at += size;
    }
    return found;
  }

  const { begin, last, wait, waited } = columns;
  const end = (i) => begin[i] + last[i];

  // Returns the first slice of a row that ends after a time: the slices of a row do not overlap.
  function firstAfter(row, time) {
    let low = row.from, high = row.to;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (end(middle) > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  // ---- words ----

  function duration(ns) {
    for (const [unit, factor] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
      if (Math.abs(ns) >= factor) return `${Number((ns / factor).toPrecision(5))} ${unit}`;
    }
    return ns ? `${Math.round(ns)} ns` : "0";
  }

  function amount(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit++; }
    return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
  }

  const word = (list, i) => (i >= 0 ? list[i] : "");
  const rowOf = (i) => rows.find((row) => row.from <= i && i < row.to);

  function title(i) {
    const name = meta.names.operations[columns.name[i]];
    if (columns.caller[i]) return `waits for ${name}`;
    return columns.outcome[i] < 0 ? `${name} (under way)` : name;
  }

  function waits(i) {
    const who = columns.awaited[i];
    if (who < 0) return "waits for others";
    return who === rowOf(i).rank ? "comes last" : `waits for rank ${who}`;
  }

  function describe(i) {
    const row = rowOf(i), group = columns.group[i];
    const lines = [`${title(i)}, rank ${row.rank}, ${row.name}`];
    let what = `begins at ${duration(begin[i])}, takes ${duration(last[i])}`;
    if (waited[i] > 0) what += `: ${waits(i)} ${duration(waited[i])}`;
    lines.push(what);
    const said = [amount(columns.bytes[i]), word(meta.names.dtypes, columns.dtype[i]),
      word(meta.names.algorithms, columns.algorithm[i]), word(meta.names.outcomes, columns.outcome[i])];
    lines.push(said.filter(Boolean).join(", "));
    if (group >= 0) {
      const number = columns.seq[i] >= 0 ? `number ${columns.seq[i]} of ` : "";
      lines.push(`${number}${meta.groups[group]}`);
    }
    return lines.join("\n");
  }

  // ---- drawing ----

  function hatched(colour) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const on = tile.getContext("2d");
    on.globalAlpha = 0.22;
    on.fillStyle = colour;
    on.fillRect(0, 0, 6, 6);
    on.globalAlpha = 0.8;
    on.strokeStyle = colour;
    on.beginPath();
    for (const at of [-6, 0, 6]) { on.moveTo(at, 6); on.lineTo(at + 6, 0); }
    on.stroke();
    return pen.createPattern(tile, "repeat");
  }

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ground", "ink", "faint", "rule", "band", "late", ...meta.families]) {
      colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
    for (const name of meta.families) waiting[name] = hatched(colours[name]);
  }

  function fit() {
    const whole = rows.length * rowHeight + axisHeight;
    $("height").style.height = "0px";
    width = view.clientWidth;
    height = Math.min(whole, Math.round(window.innerHeight * 0.65) - 2);
    $("height").style.height = `${whole - height}px`;
    left = width < 600 ? 62 : 120;
    const dense = window.devicePixelRatio || 1;
    canvas.width = width * dense;
    canvas.height = height * dense;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    draw();
  }

  let asked = false;
  function draw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; paint(); });
  }

  const x = (time) => left + ((time - show.from) * (width - left)) / (show.to - show.from);
  const timeAt = (at) => show.from + ((at - left) * (show.to - show.from)) / (width - left);
  const y = (row) => axisHeight + row * rowHeight - view.scrollTop;

  function paint() {
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = colours.ground;
    pen.fillRect(0, 0, width, height);
    const first = Math.max(0, Math.floor(view.scrollTop / rowHeight));
    const until = Math.min(rows.length, Math.ceil((view.scrollTop + height) / rowHeight) + 1);
    for (let row = first; row < until; row++) {
      if (meta.order.indexOf(rows[row].rank) % 2 === 0) {
        pen.fillStyle = colours.band;
        pen.fillRect(0, y(row), width, rowHeight);
      }
    }
    axis();
    pen.save();
    pen.beginPath();
    pen.rect(left, axisHeight, width - left, height);
    pen.clip();
    for (let row = first; row < until; row++) lane(rows[row], y(row) + 1);
    arrows();
    marks();
    pen.restore();
    names(first, until);
    Object.assign(view.dataset, { from: show.from, to: show.to });
  }

  function names(first, until) {
    for (let row = first; row < until; row++) {
      const { rank, name } = rows[row];
      const opens = row === 0 || rows[row - 1].rank !== rank;
      const text = opens ? `rank ${rank}` : left > 100 ? `  ${name}` : "";
      pen.fillStyle = opens ? colours.ink : colours.faint;
      pen.fillText(text, 6, y(row) + rowHeight / 2, left - 8);
    }
    pen.fillStyle = colours.ground;
    pen.fillRect(0, 0, left, axisHeight);
  }

  function axis() {
    const most = Math.max(2, (width - left) / 90), wanted = (show.to - show.from) / most;
    const power = 10 ** Math.floor(Math.log10(wanted));
    const step = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= wanted));
    pen.fillStyle = colours.ground;
    pen.fillRect(0, 0, width, axisHeight);
    pen.strokeStyle = colours.rule;
    pen.fillStyle = colours.faint;
    pen.beginPath();
    for (let at = Math.ceil(show.from / step) * step; at <= show.to; at += step) {
      const place = Math.round(x(at)) + 0.5;
      pen.moveTo(place, axisHeight - 4);
      pen.lineTo(place, height);
      pen.fillText(duration(at), place + 3, axisHeight / 2);
    }
    pen.stroke();
  }

  function lane(row, top) {
    const tall = rowHeight - 3, across = Math.ceil(width - left) + 1;
    const busy = new Float64Array(across), idle = new Float64Array(across), kinds = new Int8Array(across);
    let added = false;
    const scale = (width - left) / (show.to - show.from);
    for (let i = firstAfter(row, show.from); i < row.to && begin[i] < show.to; i++) {
      if (last[i] * scale >= 1.5) {
        call(i, top, tall);
        continue;
      }
      const pixel = Math.max(0, Math.floor((begin[i] - show.from) * scale));
      if (pixel >= across || (matched && !matched[i])) continue;
      busy[pixel] += last[i];
      idle[pixel] += columns.caller[i] ? last[i] : waited[i];
      kinds[pixel] = columns.family[i];
      added = true;
    }
    if (!added) return;
    for (let pixel = 0; pixel < across; pixel++) {
      if (!busy[pixel]) continue;
      const name = meta.families[kinds[pixel]];
      const full = Math.max(2, tall * Math.min(1, busy[pixel] * scale));
      const pale = full * Math.min(1, idle[pixel] / busy[pixel]);
      pen.fillStyle = waiting[name];
      pen.fillRect(left + pixel, top + tall - full, 1, pale);
      pen.fillStyle = colours[name];
      pen.fillRect(left + pixel, top + tall - full + pale, 1, full - pale);
    }
  }

  function call(i, top, tall) {
    const name = meta.families[columns.family[i]];
    const from = Math.max(x(begin[i]), left - 2), to = Math.min(x(end(i)), width + 2);
    pen.globalAlpha = matched && !matched[i] ? 0.15 : 1;
    pen.fillStyle = columns.caller[i] ? waiting[name] : colours[name];
    pen.fillRect(from, top, Math.max(to - from, 1), tall);
    if (waited[i] > 0) {
      const since = Math.max(x(begin[i] + wait[i]), from);
      const until = Math.min(x(begin[i] + wait[i] + waited[i]), to);
      if (until > since) {
        pen.clearRect(since, top, until - since, tall);
        pen.fillStyle = colours.ground;
        pen.fillRect(since, top, until - since, tall);
        pen.fillStyle = waiting[name];
        pen.fillRect(since, top, until - since, tall);
        const who = waits(i);
        label([who, who.replace("waits for ", "")], since, until, top, tall, colours.ink);
        label([title(i)], until, to, top, tall, colours.ground);
      }
    } else {
      label([title(i)], from, to, top, tall, columns.caller[i] ? colours.ink : colours.ground);
    }
    pen.globalAlpha = 1;
    if (i === chosen) {
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(from, top, Math.max(to - from, 2), tall);
      pen.lineWidth = 1;
    }
  }

  // Writes the first of some texts that fits.
  function label(texts, from, to, top, tall, colour) {
    if (to - from < 30 || tall < 12) return;
    const text = texts.find((one) => pen.measureText(one).width <= to - from - 6);
    if (text === undefined) return;
    pen.fillStyle = colour;
    pen.fillText(text, from + 4, top + tall / 2 + 1);
  }

  function arrows() {
    const { sent, got } = columns, seen = [];
    for (let k = 0; k < sent.length && seen.length <= 1500; k++) {
      if (end(got[k]) >= show.from && begin[sent[k]] <= show.to) seen.push(k);
    }
    if (seen.length > 1500) return;
    pen.strokeStyle = colours.message;
    pen.beginPath();
    for (const k of seen) {
      const of = rows.indexOf(rowOf(sent[k])), to = rows.indexOf(rowOf(got[k]));
      pen.moveTo(x(begin[sent[k]]), y(of) + rowHeight / 2);
      pen.lineTo(x(end(got[k])), y(to) + rowHeight / 2);
    }
    pen.stroke();
  }

  function marks() {
    const drawn = new Map();  // where the last mark of a row is: those that touch it are left out
    for (const { rank, at, ended, died } of meta.marks) {
      const row = rows.findIndex((one) => one.rank === rank), place = x(at), top = y(row);
      if (row < 0 || place < left - 5 || place > width + 5) continue;
      if (!ended && place - (drawn.get(row) ?? -8) < 8) continue;
      if (!ended) drawn.set(row, place);
      pen.fillStyle = pen.strokeStyle = ended && !died ? colours.faint : colours.late;
      pen.beginPath();
      if (ended) {
        pen.lineWidth = 2;
        pen.moveTo(place, top);
        pen.lineTo(place, top + rowHeight);
        pen.moveTo(place - 4, top + 2);
        pen.lineTo(place + 4, top + 10);
        pen.moveTo(place + 4, top + 2);
        pen.lineTo(place - 4, top + 10);
        pen.stroke();
        pen.lineWidth = 1;
      } else {
        pen.moveTo(place - 4, top - 3);
        pen.lineTo(place + 4, top - 3);
        pen.lineTo(place, top + 4);
        pen.fill();
      }
    }
  }

  // ---- moving ----

  function set(from, to) {
    const long = Math.min(Math.max(to - from, 100), span * 1.1);
    show.from = Math.max(-0.05 * span, Math.min(from, 1.05 * span - long));
    show.to = show.from + long;
    draw();
  }

  function zoom(factor, around = (show.from + show.to) / 2) {
    set(around - (around - show.from) * factor, around + (show.to - around) * factor);
  }

  const move = (part) => {
    const by = part * (show.to - show.from);
    set(show.from + by, show.to + by);
  };

  const acts = {
    in: () => zoom(0.6), out: () => zoom(1 / 0.6), back: () => move(-0.25), on: () => move(0.25),
    all: () => set(0, span),
  };
  const keys = {
    w: "in", "+": "in", "=": "in", s: "out", "-": "out", a: "back", ArrowLeft: "back", d: "on",
    ArrowRight: "on", 0: "all", Home: "all",
  };

  function choose(i, go) {
    chosen = i;
    $("chosen").textContent = describe(i);
    if (go) {
      const long = Math.max(last[i] * 4, Math.min(show.to - show.from, last[i] * 10));
      const middle = begin[i] + last[i] / 2, row = rows.indexOf(rowOf(i));
      set(middle - long / 2, middle + long / 2);
      if (y(row) < axisHeight || y(row) > height - rowHeight) view.scrollTop = row * rowHeight - height / 2;
    }
    draw();
  }

  // Returns the slice at a place of the screen, or the one that is nearest within 3 pixels; else -1.
  function sliceAt(event) {
    const box = canvas.getBoundingClientRect();
    const at = event.clientX - box.left;
    const row = rows[Math.floor((event.clientY - box.top - axisHeight + view.scrollTop) / rowHeight)];
    if (!row || at < left) return -1;
    const i = firstAfter(row, timeAt(at - 3));
    return i < row.to && begin[i] <= timeAt(at + 3) ? i : -1;
  }

  function hover(event) {
    const i = sliceAt(event), box = $("hover");
    box.hidden = i < 0;
    if (i < 0) return;
    box.textContent = describe(i);
    box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 4))}px`;
    const below = event.clientY + 16;
    box.style.top = `${below + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 8 : below}px`;
  }

  const fingers = new Map();
  let dragged = 0;
  view.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.clientX);
    dragged = 0;
  });
  view.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before === undefined) return hover(event);
    const distance = () => Math.max(...fingers.values()) - Math.min(...fingers.values());
    const apart = distance();
    fingers.set(event.pointerId, event.clientX);
    const by = event.clientX - before;
    dragged += Math.abs(by);
    if (dragged > 3 && !view.hasPointerCapture(event.pointerId)) view.setPointerCapture(event.pointerId);
    if (fingers.size > 1) {
      if (apart > 10 && distance() > 10) zoom(apart / distance());
    } else {
      move(-by / (width - left));
    }
    $("hover").hidden = true;
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    view.addEventListener(kind, (event) => fingers.delete(event.pointerId));
  }
  view.addEventListener("pointerleave", () => { $("hover").hidden = true; });
  view.addEventListener("click", (event) => {
    const i = sliceAt(event);
    if (i >= 0 && dragged <= 3) choose(i, false);
  });
  view.addEventListener("dblclick", (event) => {
    const i = sliceAt(event);
    if (i >= 0) choose(i, true);
  });
  view.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      zoom(Math.exp(event.deltaY / 300), timeAt(event.clientX - canvas.getBoundingClientRect().left));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      move((event.deltaX || event.deltaY) / 800);
    } else {
      return;  // the rows scroll
    }
    event.preventDefault();
  }, { passive: false });
  view.addEventListener("scroll", draw);
  document.addEventListener("keydown", (event) => {
    if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      $("search").focus();
    } else if (keys[event.key]) {
      acts[keys[event.key]]();
    } else {
      return;
    }
    event.preventDefault();
  });
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", acts[button.dataset.do]);
  }

  // ---- searching ----

  // Returns whether a slice fits a word: `rank:2`, `#12`, or a part of one of its names.
  function fits(term) {
    const rank = /^rank:(\d+)$/.exec(term), seq = /^#(\d+)$/.exec(term);
    if (rank) return (i, row) => row.rank === Number(rank[1]);
    if (seq) return (i) => columns.seq[i] === Number(seq[1]);
    const among = (list) => new Set(list.flatMap((text, i) => (text.toLowerCase().includes(term) ? [i] : [])));
    const { operations, dtypes, algorithms, outcomes } = meta.names;
    const sets = [["name", operations], ["dtype", dtypes], ["algorithm", algorithms], ["outcome", outcomes],
      ["group", meta.groups]].map(([column, list]) => [columns[column], among(list)]);
    return (i) => sets.some(([column, set]) => set.has(column[i]));
  }

  function search() {
    const terms = $("search").value.toLowerCase().split(/\s+/).filter(Boolean).map(fits);
    matches = [];
    matched = terms.length ? new Uint8Array(begin.length) : null;
    if (matched) {
      for (const row of rows) {
        for (let i = row.from; i < row.to; i++) {
          if (terms.every((fit) => fit(i, row))) { matched[i] = 1; matches.push(i); }
        }
      }
      matches.sort((a, b) => begin[a] - begin[b]);
    }
    $("found").textContent = matched ? `${matches.length} found${matches.length ? "; Enter goes on" : ""}` : "";
    draw();
  }

  $("search").addEventListener("input", search);
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { $("search").value = ""; search(); view.focus(); }
    if (event.key !== "Enter" || !matches.length) return;
    const at = matches.indexOf(chosen), by = event.shiftKey ? -1 : 1;
    const next = at < 0 ? 0 : (at + by + matches.length) % matches.length;
    choose(matches[next], true);
    $("found").textContent = `${next + 1} of ${matches.length}`;
  });

  // ---- what stands around it ----

  function element(kind, text, inside) {
    const made = document.createElement(kind);
    made.textContent = text;
    if (inside) inside.append(made);
    return made;
  }

  function shown(kind, value) {
    if (value === null) return "-";
    if (kind === "time") return duration(value);
    if (kind === "share") return `${Math.round(100 * value)} %`;
    if (kind === "bytes") return amount(value);
    return typeof value === "number" && kind === "count" ? value.toLocaleString("en") : String(value);
  }

  function table(by, downwards) {
    const { heads, lines } = meta.table, [head, body] = $("ranks").children;
    head.replaceChildren();
    body.replaceChildren();
    const line = head.insertRow();
    heads.forEach(([text], i) => {
      const cell = element("th", "", line);
      cell.scope = "col";
      cell.ariaSort = i === by ? (downwards ? "descending" : "ascending") : "none";
      element("button", text, cell).addEventListener("click", () => table(i, i !== by || !downwards));
    });
    const order = (a, b) => (a[by] === b[by] ? 0 : a[by] === null || a[by] < b[by] ? -1 : 1);
    const sorted = [...lines].sort((a, b) => (downwards ? -1 : 1) * order(a, b));
    for (const values of sorted) {
      const one = body.insertRow();
      values.forEach((value, i) => element("td", shown(heads[i][1], value), one));
    }
  }

  function legend() {
    $("legend").replaceChildren();
    for (const [name, text] of meta.legend) {
      const item = element("span", "", $("legend"));
      const box = element("i", "", item);
      box.style.background = colours[name];
      item.append(text);
    }
    element("span", "pale and hatched: waits for others; red: comes late (\u25be), died (\u00d7)", $("legend"));
  }

  $("said").textContent = meta.said;
  for (const note of meta.notes) element("li", note, $("notes"));
  for (const finding of meta.findings) element("li", finding, $("findings"));
  readColours();
  legend();
  table(meta.table.by, true);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); legend(); draw(); });
  new ResizeObserver(fit).observe(document.body);
  fit();
  document.body.dataset.ready = "yes";
})();
