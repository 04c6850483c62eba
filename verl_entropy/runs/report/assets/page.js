// SPDX-License-Identifier: Apache-2.0
// The page's figures and trajectories. Everything of a run is set as text, never as markup.
"use strict";
(() => {
  // plotly.js sets some styles as attributes, which the page's policy forbids; the same through the style object is allowed.
  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };

  let model = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 34rem)");
  const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B07800", "#3C9AD0", "#000000", "#7F7F7F"];
  const DARK = ["#4FA8E0", "#FF8A3D", "#2CC79A", "#E59AC8", "#F0B93A", "#8FD3FF", "#FFFFFF", "#A8A8A8"];
  const CLASSES = { correct: 2, wrong: 1, valid: 0 };
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const PHASES = {
    warmup: ["#dcdcdc", "#4a4a4a", ""], descent: ["#b9d7ee", "#2d5575", ""], steady: ["#cfe3d8", "#2f5140", ""],
    eruption: ["#f0a184", "#a34a2c", "/"], subsidence: ["#f2d98a", "#7d6520", "."],
  };
  const MARKS = { eruption: "triangle-down", step_change: "line-ns-open", collapse: "triangle-up", non_finite: "x", onset: "line-ns-open" };
  const state = { off: new Set(), smooth: 1, log: new Set(), seen: new Set(), drawn: new Set() };

  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (key === "class") node.className = value || "";
      else if (value !== false && value !== null) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  };
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, most = 34) => (text.length > most ? text.slice(0, most - 1) + "\u2026" : text);
  // In the middle: the end of a label has the seed.
  const middle = (text, most) => (text.length > most ? text.slice(0, most - 1 - Math.floor(most / 2)) + "\u2026" + text.slice(-Math.floor(most / 2)) : text);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = () => (dark.matches ? DARK : LIGHT);
  const colorOf = (color) => palette()[(color in CLASSES ? CLASSES[color] : color) % LIGHT.length];
  const faded = (hex, alpha) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
  const steps = (x) => (Array.isArray(x) ? x : model.steps[x]);

  // Trailing mean over k points; gaps stay gaps.
  const smoothed = (values, k) => {
    if (k < 2) return values;
    const found = [];
    let sum = 0, count = 0;
    values.forEach((value, i) => {
      if (value !== null) { sum += value; count += 1; }
      if (i >= k && values[i - k] !== null) { sum -= values[i - k]; count -= 1; }
      found.push(value === null || !count ? null : sum / count);
    });
    return found;
  };

  const shown = (trace) => {
    if (trace.run !== undefined) return !state.off.has(trace.run);
    if (trace.group === undefined) return true;
    return model.runs.some((run, i) => run.group === trace.group && !state.off.has(i));
  };

  // ---------------------------------------------------------------- figures

  const axisName = (letter, i) => letter + (i ? String(i + 1) : "");

  function linesOf(figure) {
    const traces = [], named = new Set();
    figure.facets.forEach((facet, f) => {
      const own = Boolean(facet.xlabel), k = own ? 1 : state.smooth;
      const axes = { xaxis: own ? axisName("x", f) : "x", yaxis: axisName("y", f) };
      facet.traces.filter(shown).forEach((trace) => {
        const x = steps(trace.x), y = smoothed(trace.y, k), color = colorOf(trace.color);
        const label = plain(middle(trace.label, narrow.matches ? 34 : 48));
        if (trace.spread && k < 2) {
          const high = y.map((v, i) => (v === null ? null : v + trace.spread[i]));
          const low = y.map((v, i) => (v === null ? null : v - trace.spread[i]));
          const edge = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: label, x, ...axes };
          traces.push({ ...edge, y: low }, { ...edge, y: high, fill: "tonexty", fillcolor: faded(color, 0.18) });
        }
        const few = x.length < 12;
        traces.push({
          x, y, name: label, legendgroup: label, ...axes,
          mode: trace.points ? "markers" : few ? "lines+markers" : "lines",
          line: { color, width: trace.thin ? 0.8 : 1.8, dash: DASHES[trace.dash || 0] },
          marker: { color, size: trace.points ? 5 : 4, opacity: trace.points ? 0.6 : 1, symbol: trace.label.startsWith("wrong") || trace.label.startsWith("after") ? "x" : "circle" },
          opacity: trace.thin ? 0.55 : 1,
          showlegend: !trace.thin && !named.has(label),
          hovertemplate: trace.points ? "%{x:.3g}, %{y:.4g}" : `%{y:.4g}`,
        });
        if (!trace.thin) named.add(label);
      });
    });
    return traces;
  }

  const apart = (figure) => {
    const labels = figure.facets.map((facet) => new Set(facet.traces.filter((t) => !t.thin).map((t) => t.label)));
    return labels.length > 1 && ![...labels[0]].some((label) => labels.every((l) => l.has(label)));
  };

  function marksOf(figure) {
    if (!figure.facets.length || !figure.marks.length) return [];
    const byName = {};
    for (const [step, name, run] of figure.marks) {
      if (run !== null && state.off.has(run)) continue;
      const trace = figure.facets[0].traces.find((t) => t.run === run);
      if (!trace || name === "onset") continue;
      const x = steps(trace.x), values = smoothed(trace.y, state.smooth);
      let place = x.findIndex((s) => s >= step);
      if (place < 0) place = x.length - 1;
      const found = (byName[name] = byName[name] || { x: [], y: [], text: [] });
      found.x.push(step); found.y.push(values[place]);
      found.text.push(plain(`${name.replace(/_/g, " ")} seen at step ${step}: ${model.runs[run] ? model.runs[run].name : ""}`));
    }
    return Object.entries(byName).map(([name, found]) => ({
      ...found, mode: "markers", name: plain(name.replace(/_/g, " ") + " seen"), hovertemplate: "%{text}<extra></extra>", xaxis: "x", yaxis: "y",
      marker: { symbol: MARKS[name] || "diamond", size: 10, color: dark.matches ? "#ff7b6b" : "#8b1a1a", line: { width: 2, color: dark.matches ? "#ff7b6b" : "#8b1a1a" } },
    }));
  }

  function stripsOf(figure, axis) {
    const byPhase = {};
    figure.strips.forEach(([label, spans], row) => {
      if (state.off.has(row)) return;
      for (const [phase, first, last] of spans) {
        const found = (byPhase[phase] = byPhase[phase] || { base: [], x: [], y: [], text: [] });
        found.base.push(first); found.x.push(Math.max(last - first, 0.5)); found.y.push(row);
        found.text.push(plain(`${label}: ${phase}, steps ${first} to ${last}`));
      }
    });
    return Object.entries(byPhase).map(([phase, found]) => {
      const [light, night, pattern] = PHASES[phase] || ["#cccccc", "#555555", ""];
      return {
        ...found, type: "bar", orientation: "h", name: plain(phase), xaxis: "x", yaxis: axis, hovertemplate: "%{text}<extra></extra>", textposition: "none",
        marker: { color: dark.matches ? night : light, line: { width: 0 }, pattern: { shape: pattern, size: 6, solidity: 0.25 } },
      };
    });
  }

  function mapsOf(figure) {
    const top = Math.max(...figure.maps.flatMap((m) => m.z.flat()).filter((v) => v !== null), 1e-9);
    return figure.maps.map((map, i) => ({
      type: "heatmap", x: steps(map.x), z: map.z, zmin: 0, zmax: top, colorscale: "Cividis", showscale: i === 0, xaxis: "x", yaxis: axisName("y", i),
      colorbar: { title: { text: "nats", side: "right" }, thickness: 12, len: 1, outlinewidth: 0 }, hoverongaps: false,
      hovertemplate: "step %{x}, turn %{y}: %{z:.3g} nats<extra></extra>",
    }));
  }

  function draw(figure, box) {
    const ink = css("--ink"), line = css("--line"), soft = css("--soft");
    const maps = figure.maps.length > 0;
    const rows = maps ? figure.maps.map((m) => ({ ylabel: "turn", title: figure.maps.length > 1 ? m.label : "", xlabel: "" })) : figure.facets;
    const strips = figure.strips.length, stripTall = strips ? 26 + 17 * strips : 0;
    const tall = rows.length > 1 ? 170 : 270;
    const total = rows.length * tall + stripTall + (figure.facets.some((f) => f.xlabel) && rows.length > 1 ? 40 * rows.length : 0);
    const gap = (figure.facets.some((f) => f.xlabel) ? 62 : 30) / total;
    const layout = {
      height: total + 90, margin: { l: 58, r: 12, t: 26, b: 42 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 12, family: "system-ui, -apple-system, Segoe UI, sans-serif" }, bargap: 0.25, barmode: "overlay",
      annotations: [], shapes: [],
      hovermode: figure.facets.some((f) => f.xlabel) || maps || strips > 1 || rows.some((f) => (f.traces || []).length > 8) ? "closest" : "x unified",
      hoverlabel: { bgcolor: css("--panel"), bordercolor: line, font: { color: ink, size: 12 }, namelength: 40 },
    };
    const plotTall = 1 - (stripTall ? (stripTall + 34) / total : 0);
    const each = (plotTall - gap * (rows.length - 1)) / rows.length;
    const base = { gridcolor: line, zerolinecolor: line, linecolor: soft, automargin: true };
    rows.forEach((facet, f) => {
      const bottom = 1 - (f + 1) * each - f * gap, own = Boolean(facet.xlabel);
      const log = !maps && state.log.has(figure.name);
      layout[axisName("yaxis", f)] = {
        ...base, domain: [Math.max(bottom, 0), Math.min(bottom + each, 1)], title: { text: plain(facet.ylabel), font: { size: 12 }, standoff: 6 },
        type: log ? "log" : "linear", anchor: own ? axisName("x", f) : "x", nticks: log ? undefined : rows.length > 1 ? 5 : 7, exponentformat: "e",
      };
      if (own) layout[axisName("xaxis", f)] = { ...base, title: { text: plain(facet.xlabel) }, anchor: axisName("y", f) };
      if (facet.title) {
        layout.annotations.push({ text: plain(middle(facet.title, 48)), xref: "paper", yref: "paper", x: 0, y: Math.min(bottom + each, 1), xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 11, color: soft } });
      }
    });
    const last = strips ? axisName("y", rows.length) : axisName("y", rows.length - 1);
    if (!figure.facets.some((f) => f.xlabel)) {
      layout.xaxis = { ...base, title: { text: "training step" }, range: figure.range ? [...figure.range] : undefined, anchor: last, nticks: narrow.matches ? 5 : 8 };
    }
    for (const [first, end, phase] of figure.shades) {
      const [light, night] = PHASES[phase] || PHASES.warmup;
      layout.shapes.push({ type: "rect", xref: "x", yref: "paper", x0: first, x1: end, y0: 1 - plotTall, y1: 1, fillcolor: dark.matches ? night : light, opacity: 0.4, line: { width: 0 }, layer: "below" });
    }
    for (const [step, name] of figure.marks) {
      if (name === "onset") layout.shapes.push({ type: "line", xref: "x", yref: "paper", x0: step, x1: step, y0: 0, y1: 1, line: { color: dark.matches ? "#ff7b6b" : "#8b1a1a", width: 1.2, dash: "dash" } });
    }
    let traces = maps ? mapsOf(figure) : [...linesOf(figure), ...marksOf(figure)];
    if (strips) {
      const room = narrow.matches ? 9 : 16;
      layout[axisName("yaxis", rows.length)] = {
        domain: [0, stripTall / total], tickvals: figure.strips.map((_, i) => i), ticktext: figure.strips.map(([label]) => plain(middle(label, room))),
        range: [strips - 0.5, -0.5], tickfont: { size: 10 }, anchor: "x", showgrid: false, zeroline: false, automargin: true, fixedrange: true,
      };
      traces = [...traces, ...stripsOf(figure, axisName("y", rows.length))];
    }
    // One legend above all where the facets show the same, else one above each.
    const own = apart(figure);
    if (own) {
      rows.forEach((_, f) => {
        const domain = layout[axisName("yaxis", f)].domain;
        layout[f ? `legend${f + 1}` : "legend"] = { orientation: "h", x: 1, xanchor: "right", y: domain[1], yanchor: "bottom", font: { size: 11 }, bgcolor: "rgba(0,0,0,0)", tracegroupgap: 0 };
      });
      for (const trace of traces) {
        const f = Number((trace.yaxis || "y").slice(1) || 1);
        if (f > 1) trace.legend = `legend${f}`;
      }
      layout.margin.t = 34;
    } else {
      const named = traces.filter((t) => t.showlegend !== false && t.type !== "heatmap" && t.name);
      const wide = Math.max((box.clientWidth || 500) - 90, 200);
      let lines = named.length > 1 ? 1 : 0, at = 0;
      for (const trace of named) {
        const width = 52 + 5.8 * trace.name.length;
        if (at && at + width > wide) { lines += 1; at = 0; }
        at += width;
      }
      lines = Math.min(lines, 10);
      layout.legend = { orientation: "h", yref: "container", y: 1, yanchor: "top", x: 0, xref: "paper", xanchor: "left", font: { size: 11 }, bgcolor: "rgba(0,0,0,0)", maxheight: 20 * 10, tracegroupgap: 0 };
      layout.showlegend = named.length > 1;
      layout.margin.t = 12 + 20 * lines + (rows.some((f) => f.title) ? 16 : 0);
    }
    layout.height += layout.margin.t - 26;
    // The reader's zoom stays when new steps come in.
    const before = box.layout, zoomed = before && before.xaxis && state.zoom && state.zoom[figure.name];
    if (zoomed) for (const [key, range] of Object.entries(zoomed)) if (layout[key]) { layout[key].range = [...range]; layout[key].autorange = false; }
    const config = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false };
    const done = Plotly.react(box, traces, layout, config);
    if (!box.dataset.bound) {
      box.dataset.bound = "1";
      box.on("plotly_relayout", (change) => remember(figure.name, change));
    }
    return done;
  }

  function remember(name, change) {
    state.zoom = state.zoom || {};
    const zoom = (state.zoom[name] = state.zoom[name] || {});
    for (const [key, value] of Object.entries(change)) {
      const range = key.match(/^([xy]axis\d*)\.range\[([01])\]$/);
      if (range) (zoom[range[1]] = zoom[range[1]] || [0, 0])[Number(range[2])] = value;
      if (/^[xy]axis\d*\.autorange$/.test(key)) delete zoom[key.split(".")[0]];
    }
  }

  const columnsOf = (figure) => {
    const columns = figure.facets.flatMap((facet) => facet.traces.map((trace) => ({
      name: [...new Set([facet.title, trace.label].filter(Boolean))].join(", ") || facet.ylabel, x: steps(trace.x), y: trace.y, own: Boolean(facet.xlabel),
    })));
    for (const map of figure.maps) map.z.forEach((row, turn) => columns.push({ name: `${map.label}, turn ${turn}`, x: steps(map.x), y: row }));
    return columns;
  };

  // Head and rows: a row a step, or for clouds of points a row a point.
  function tableOf(figure) {
    const columns = columnsOf(figure);
    if (columns.some((c) => c.own)) {
      return [["series", "x", "y"], columns.flatMap((c) => c.x.map((x, i) => [c.name, x, c.y[i]]))];
    }
    const at = new Map();
    columns.forEach((column, c) => column.x.forEach((step, i) => {
      if (!at.has(step)) at.set(step, new Array(columns.length).fill(null));
      at.get(step)[c] = column.y[i];
    }));
    const rows = [...at.entries()].sort((a, b) => a[0] - b[0]).map(([step, values]) => [step, ...values]);
    return [["step", ...columns.map((c) => c.name)], rows];
  }

  function save(name, type, text) {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function csv(figure) {
    // A text that begins like a formula is quoted as text, for spreadsheets run formulas.
    const cell = (v) => {
      if (v === null || v === undefined) return "";
      if (typeof v === "number") return String(v);
      const text = /^[=+\-@\t\r]/.test(v) ? `'${v}` : v;
      return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
    };
    const [head, rows] = tableOf(figure);
    return [head, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }

  const MOST_ROWS = 200, MOST_COLUMNS = 12;
  function fillTable(figure, box) {
    const [head, rows] = tableOf(figure), every = Math.ceil(rows.length / MOST_ROWS);
    const kept = rows.filter((_, i) => i % every === 0), wide = Math.min(head.length, MOST_COLUMNS);
    const text = (v) => (v === null || v === undefined ? "" : String(v));
    const row = (tag, cells) => make("tr", {}, ...cells.slice(0, wide).map((c) => make(tag, tag === "th" ? { scope: "col" } : {}, text(c))));
    const notes = [];
    if (every > 1) notes.push(`Every ${every}th of ${rows.length} rows is shown.`);
    if (wide < head.length) notes.push(`${head.length - wide} more columns are not shown.`);
    if (notes.length) notes.push("The CSV file has all.");
    box.replaceChildren(make("p", { class: "note" }, notes.join(" ")), make("div", { class: "wide tall" }, make("table", {}, row("th", head), ...kept.map((r) => row("td", r)))));
  }

  const boxes = new Map();
  const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => {
    const name = entry.target.id;
    if (entry.isIntersecting) { state.seen.add(name); refresh(name); } else state.seen.delete(name);
  }), { rootMargin: "600px" });
  const stale = new Set();

  function refresh(name) {
    const figure = model.figures.find((f) => f.name === name), parts = boxes.get(name);
    if (!figure || !parts || !stale.has(name) || !state.seen.has(name)) return;
    stale.delete(name);
    draw(figure, parts.plot);
  }

  function frame(figure) {
    const plot = make("div", { class: "plot", role: "img" });
    const caption = make("figcaption"), title = make("h3"), table = make("div");
    const current = () => model.figures.find((f) => f.name === figure.name);
    const image = (format) => Plotly.downloadImage(plot, { format, filename: `${figure.name}`, width: 1000, height: Math.max(plot.clientHeight, 400), scale: format === "png" ? 2 : 1 });
    const log = make("button", { type: "button", "aria-pressed": "false", onclick: () => {
      const on = !state.log.has(figure.name);
      state.log[on ? "add" : "delete"](figure.name);
      log.setAttribute("aria-pressed", String(on));
      if (state.zoom) delete state.zoom[figure.name];
      draw(current(), plot);
    } }, "Log scale");
    const details = make("details", { ontoggle: () => { if (details.open) fillTable(current(), table); } }, make("summary", { class: "note" }, "Data table"), table);
    const tools = make("div", { class: "tools" }, ...(figure.maps.length ? [] : [log]),
      make("button", { type: "button", title: "drag over a figure to zoom in", onclick: () => { if (state.zoom) delete state.zoom[figure.name]; draw(current(), plot); } }, "Reset zoom"),
      make("button", { type: "button", onclick: () => image("png") }, "PNG"), make("button", { type: "button", onclick: () => image("svg") }, "SVG"),
      make("button", { type: "button", onclick: () => save(`${figure.name}.csv`, "text/csv", csv(current())) }, "CSV"));
    const node = make("figure", { id: figure.name }, title, plot, caption, tools, details);
    boxes.set(figure.name, { node, plot, caption, title, details, table });
    watcher.observe(node);
    return node;
  }

  function figures() {
    const grid = document.getElementById("grid");
    model.figures.forEach((figure, i) => {
      if (!boxes.has(figure.name)) grid.insertBefore(frame(figure), grid.children[i] || null);
      const parts = boxes.get(figure.name);
      parts.title.textContent = figure.title;
      parts.caption.textContent = figure.caption + (state.smooth > 1 && !figure.maps.length ? ` Smoothed: trailing mean of ${state.smooth} points.` : "");
      parts.plot.setAttribute("aria-label", figure.alt);
      if (parts.details.open) fillTable(figure, parts.table);
      stale.add(figure.name);
      refresh(figure.name);
    });
    for (const [name, parts] of boxes) {
      if (!model.figures.some((f) => f.name === name)) { parts.node.remove(); boxes.delete(name); }
    }
  }

  function controls() {
    const box = document.getElementById("controls");
    const smooth = make("select", { onchange: () => { state.smooth = Number(smooth.value); figures(); } },
      ...[1, 3, 5, 10, 25, 50].map((k) => make("option", { value: k, selected: k === state.smooth }, k === 1 ? "none" : `${k} points`)));
    const parts = [make("label", {}, "Smoothing ", smooth)];
    if (model.runs.length > 1) {
      const all = (on) => () => { state.off = new Set(on ? [] : model.runs.keys()); controls(); figures(); };
      parts.push(make("button", { type: "button", onclick: all(true) }, "All runs"), make("button", { type: "button", onclick: all(false) }, "No run"));
      parts.push(make("div", { class: "runlist", role: "group", "aria-label": "Runs that are drawn" }, ...model.runs.map((run, i) => {
        const tick = make("input", { type: "checkbox", checked: !state.off.has(i), onchange: () => { state.off[tick.checked ? "delete" : "add"](i); figures(); } });
        const swatch = make("span", { class: "swatch" });
        swatch.style.background = new Set(model.runs.map((r) => r.group)).size > 1 ? colorOf(run.group) : "transparent";
        return make("label", {}, tick, swatch, run.name);
      })));
    }
    box.replaceChildren(...parts);
  }

  // ---------------------------------------------------------------- trajectories

  const COLOURS = {
    entropy: ["entropy (nats)", "entropy", false], advantage: ["advantage", "advantages", true],
    advantage_before: ["advantage before our transforms", "advantages_before", true], ratio: ["ratio trainer to sampler", "ratio", true],
    dropped: ["tokens that a transform dropped", "dropped", false], clip: ["side on which the loss clipped", "clip", true], none: ["no colour", "", false],
  };
  const told = { colour: "entropy", success: "", task: "", step: "", run: "", turn: "", a: null, b: null, two: false };
  const valuesOf = (turn, colour) => {
    const list = turn[COLOURS[colour][1]];
    if (list) return colour === "ratio" ? list.map((v) => (v === null || v <= 0 ? null : Math.log(v))) : list;
    const whole = turn[colour];
    return typeof whole === "number" && turn.tokens ? turn.tokens.map(() => whole) : null;
  };
  const quantile = (values, q) => { const v = [...values].sort((a, b) => a - b); return v.length ? v[Math.floor(q * (v.length - 1))] : 0; };

  function describe(item) {
    const run = model.runs.length > 1 ? `${model.runs[item.run].name}, ` : "";
    const outcome = item.success === null ? "" : item.success ? ", correct" : ", wrong";
    const phase = item.phase ? ` (${item.phase})` : "";
    return `${run}step ${item.step}${phase}${outcome}${item.score === null ? "" : `, score ${item.score}`}${item.task ? `: ${short(item.task.replace(/\s+/g, " "), 70)}` : ""}`;
  }

  function matching() {
    return model.trajectories.items.map((item, i) => [item, i]).filter(([item]) =>
      (told.run === "" || item.run === Number(told.run)) && (told.step === "" || item.step === Number(told.step)) &&
      (told.success === "" || String(item.success) === told.success) && (told.task === "" || item.task === told.task) &&
      (told.turn === "" || item.turns.length > Number(told.turn))).map(([, i]) => i);
  }

  function turnNode(turn, index, colour, top) {
    const facts = [`turn ${index}`];
    for (const [key, name] of [["reward", "reward"], ["penalty", "penalty"], ["advantage_before", "advantage before"], ["advantage", "advantage"]]) {
      if (turn[key] !== undefined && !(key === "penalty" && !turn[key])) facts.push(`${name} ${turn[key]}`);
    }
    if (turn.valid !== undefined) facts.push(turn.valid ? "valid" : "not valid");
    if (turn.admissible === false) facts.push("not admissible");
    if (turn.cut) facts.push("answer cut");
    const entropy = (turn.entropy || []).filter((v) => v !== null);
    if (entropy.length) facts.push(`entropy ${(entropy.reduce((a, b) => a + b, 0) / entropy.length).toPrecision(3)} nats`);
    const part = (what, text, kind, open = true) => text ? (open ? [make("div", { class: "what" }, what), make("div", { class: kind }, text)] : [make("details", {}, make("summary", { class: "what" }, what), make("div", { class: kind }, text))]) : [];
    const text = make("div", { class: "text" });
    if (turn.tokens) {
      const values = valuesOf(turn, colour), diverging = COLOURS[colour][2];
      turn.tokens.forEach((token, i) => {
        const value = values ? values[i] : null;
        if (value === null || value === undefined || colour === "none") { text.append(token); return; }
        const shade = colour === "dropped" ? 6 * value : Math.round(6 * Math.min(Math.abs(value) / top, 1));
        const kind = diverging && value < 0 ? "c" : "h";
        const shownValue = colour === "ratio" ? Math.exp(value).toPrecision(4) : colour === "clip" ? ["below", "not clipped", "above"][value + 1] : value;
        text.append(make("span", { class: `${shade ? kind + shade : ""}${turn.dropped && turn.dropped[i] ? " d1" : ""}`.trim() || false, title: `${COLOURS[colour][0]} ${shownValue}` }, token));
      });
      if (turn.hidden) text.append(make("i", {}, ` ... ${turn.hidden} tokens are not shown`));
    } else text.append(turn.text || "");
    return make("div", { class: "turn" }, make("div", { class: "note" }, facts.join(", ")),
      ...part("prompt", turn.prompt, "seen", !turn.observation), ...part("observation", turn.observation, "seen"),
      ...part("thought", turn.thought, "thought", false), make("div", { class: "what" }, "answer"), text, ...part("action", turn.action, "text action"));
  }

  function pane(key, choices, top) {
    const items = model.trajectories.items;
    const select = make("select", { "aria-label": `Trajectory ${key}`, onchange: () => { told[key] = Number(select.value); trajectories(); } },
      ...choices.map((i) => make("option", { value: i, selected: i === told[key] }, describe(items[i]))));
    const item = items[told[key]];
    const parts = [select];
    if (item) {
      if (item.task) parts.push(make("div", { class: "what" }, "task" + (item.type ? ` (${item.type})` : "")), make("div", { class: "text" }, item.task));
      if (item.judged) parts.push(make("p", { class: "note" }, item.judged));
      item.turns.forEach((turn, i) => { if (told.turn === "" || Number(told.turn) === i) parts.push(turnNode(turn, i, told.colour, top)); });
      if (item.cut) parts.push(make("p", { class: "note" }, `${item.cut} tokens were not stored.`));
    } else parts.push(make("p", { class: "missing" }, "No trajectory matches."));
    return make("div", { class: "pane" }, ...parts);
  }

  function trajectories() {
    const box = document.getElementById("told"), { items, pairs, note } = model.trajectories;
    if (!items.length) { box.replaceChildren(make("p", { class: "missing" }, "None to show: the runs have no stored trajectories.")); return; }
    const choices = matching();
    if (!choices.includes(told.a)) told.a = choices.length ? choices[0] : null;
    if (!choices.includes(told.b)) told.b = choices.length > 1 ? choices.find((i) => i !== told.a) : told.a;
    const available = Object.keys(COLOURS).filter((c) => c === "none" || items.some((item) => item.turns.some((turn) => valuesOf(turn, c))));
    if (!available.includes(told.colour)) told.colour = available[0];
    const size = items.flatMap((item) => item.turns.flatMap((turn) => (valuesOf(turn, told.colour) || []).filter((v) => v !== null).map(Math.abs)));
    const top = told.colour === "clip" ? 1 : Math.max(quantile(size, 0.95), 1e-3);
    const menu = (label, key, options) => {
      const select = make("select", { onchange: () => { told[key] = select.value; trajectories(); } }, ...options.map(([value, text]) => make("option", { value, selected: String(value) === String(told[key]) }, text)));
      return make("label", {}, label + " ", select);
    };
    const unique = (values) => [...new Set(values)];
    const bar = make("div", { class: "controls" },
      ...(model.runs.length > 1 ? [menu("Run", "run", [["", "all"], ...unique(items.map((t) => t.run)).map((i) => [i, short(model.runs[i].name, 40)])])] : []),
      menu("Outcome", "success", [["", "all"], ["true", "correct"], ["false", "wrong"]]),
      menu("Step", "step", [["", "all"], ...unique(items.map((t) => t.step)).sort((a, b) => a - b).map((s) => [s, s])]),
      menu("Task", "task", [["", "all"], ...unique(items.map((t) => t.task).filter(Boolean)).sort().map((t) => [t, short(t.replace(/\s+/g, " "), 50)])]),
      menu("Turn", "turn", [["", "all"], ...[...Array(Math.max(...items.map((t) => t.turns.length))).keys()].map((k) => [k, k])]),
      menu("Colour", "colour", available.map((c) => [c, COLOURS[c][0]])),
      make("button", { type: "button", "aria-pressed": String(told.two), onclick: () => { told.two = !told.two; trajectories(); } }, "Side by side"),
      ...(pairs.length ? [make("button", { type: "button", onclick: () => {
        const next = (pairs.findIndex(([a, b]) => a === told.a && b === told.b) + 1) % pairs.length;
        Object.assign(told, { run: "", success: "", step: "", task: "", turn: "", two: true, a: pairs[next][0], b: pairs[next][1] });
        trajectories();
      } }, `Same task before and in an eruption (${pairs.length})`)] : []));
    const scale = make("div", { class: "scale" }, `Colour: ${COLOURS[told.colour][0]}`);
    if (told.colour === "clip") {
      scale.append(make("span", { class: "c6" }, "below (advantage < 0)"), make("span", { class: "h6" }, "above (advantage > 0)"));
    } else if (told.colour !== "none" && told.colour !== "dropped") {
      const marks = COLOURS[told.colour][2] ? [-6, -4, -2, 0, 2, 4, 6] : [0, 1, 2, 3, 4, 5, 6];
      for (const m of marks) {
        const value = (m / 6) * top;
        scale.append(make("span", { class: m ? (m < 0 ? "c" : "h") + Math.abs(m) : false }, told.colour === "ratio" ? Math.exp(value).toFixed(2) : value.toFixed(2)));
      }
    }
    const counted = `${choices.length} of ${items.length} match.` + (note ? ` ${note}` : "");
    box.replaceChildren(bar, scale, make("p", { class: "note" }, counted),
      make("div", { class: told.two ? "panes two" : "panes" }, pane("a", choices, top), ...(told.two ? [pane("b", choices, top)] : [])));
  }

  // ---------------------------------------------------------------- live

  const EVERY = 2000;
  function follow() {
    const bar = make("div", { class: "live", role: "status" }, "live: waiting for the next step");
    document.body.prepend(bar);
    const steps_ = () => Math.max(0, ...model.figures.flatMap((f) => (f.range ? [f.range[1]] : [])));
    const ask = async () => {
      try {
        const answer = await fetch(`model.json?v=${model.version}`, { cache: "no-store" });
        if (answer.status === 200) {
          const next = await answer.json(), items = model.trajectories.items.length;
          const runs = JSON.stringify(next.runs) !== JSON.stringify(model.runs);
          model = next;
          document.title = `Entropy report: ${model.title}`;
          document.getElementById("head").innerHTML = model.head; // made by the template, which escapes
          if (runs) { state.off = new Set(); controls(); }
          figures();
          if (model.trajectories.items.length !== items || runs) trajectories();
        }
        bar.textContent = `live: step ${Math.floor(steps_())}, asked at ${new Date().toLocaleTimeString()}`;
      } catch {
        bar.textContent = "live: the server does not answer; what it sent last is shown";
      }
      setTimeout(ask, EVERY);
    };
    setTimeout(ask, EVERY);
  }

  const again = () => { controls(); figures(); };
  dark.addEventListener("change", again);
  narrow.addEventListener("change", again);

  // plotly.js is 4.8 MB, and 1.5 MB compressed; the page's policy lets it run by its hash, wherever it comes from.
  const inflate = async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const text = await new Response(stream).text();
    // Its map library adds a style, which the page's policy forbids, unless an element with that style's id is there; no map is drawn.
    for (const [, id] of text.matchAll(/getElementById\("([0-9a-f]{64})"\)/g)) document.head.append(make("meta", { id }));
    const script = make("script", {}, text);
    document.head.append(script);
    script.remove();
  };
  const start = () => {
    again();
    trajectories();
    if (model.live) follow();
  };
  inflate().then(start, (error) => {
    document.body.prepend(make("p", { class: "problem" }, `This browser cannot unpack the page's figures (${error}); they are also PNG files.`));
  });
})();
