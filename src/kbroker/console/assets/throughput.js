// The charts of the last ten minutes, drawn by uPlot in the colours of the page.
"use strict";
(() => {
  const charts = document.getElementById("charts");
  const KEEP_S = 600;
  const bytes = (n) => {
    if (n == null) return "-";
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (Math.abs(n) < 1024) return `${unit === "B" ? Math.round(n) : n.toFixed(1)} ${unit}/s`;
      n /= 1024;
    }
    return `${n.toFixed(1)} TiB/s`;
  };
  const rate = (n) => n == null ? "-" : `${n >= 100 ? Math.round(n).toLocaleString("en") : +n.toFixed(1)}/s`;
  const time = (n) => n == null ? "-" : n < 1000 ? `${+n.toPrecision(3)} ms` : `${(n / 1000).toFixed(1)} s`;
  const LINES = {
    bytes: [bytes, ["bytes_in", "in", 1], ["bytes_out", "out", 2]],
    requests: [rate, ["produce", "Produce", 1], ["fetch", "Fetch", 3], ["other", "others", 5]],
    time: [time, ["produce_ms", "Produce", 4]],
    throttled: [rate, ["throttled", "delayed", 2], ["refused", "refused", 4]],
  };
  const BINARY = [0, 1, 2, 3].flatMap((power) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((n) => n * 1024 ** power));
  const columns = {};
  const drawn = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function make(host) {
    const [text, ...lines] = LINES[host.dataset.chart];
    const axis = {stroke: colour("--soft"), grid: {stroke: colour("--edge"), width: 1}, ticks: {stroke: colour("--edge"), width: 1}};
    const plot = new uPlot({
      width: Math.max(280, host.clientWidth), height: 190,
      cursor: {drag: {x: false, y: false}, y: false},
      scales: {y: {range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1]}},
      axes: [
        {...axis, values: (u, at) => at.map((s) => new Date(s * 1000).toISOString().slice(11, 19)), space: 70},
        {...axis, size: 84, ...(text === bytes ? {incrs: BINARY} : {}), values: (u, at) => at.map(text)},
      ],
      series: [
        {label: "UTC", value: (u, s) => s == null ? "-" : new Date(s * 1000).toISOString().slice(11, 19)},
        ...lines.map(([, label, number]) => ({label, stroke: colour(`--c${number}`), width: 1.8, value: (u, n) => text(n), points: {show: false}})),
      ],
    }, data(lines), host);
    drawn.push({plot, host, lines, text});
  }

  const data = (lines) => [columns.time_ms.map((ms) => ms / 1000), ...lines.map(([name]) => columns[name])];

  function table() {
    const body = document.querySelector("#latest-values tbody");
    body.replaceChildren();
    for (const {lines, text, host} of drawn) {
      for (const [name, label] of lines) {
        const row = body.insertRow();
        const head = document.createElement("th");
        head.scope = "row";
        head.textContent = `${host.previousElementSibling.textContent}: ${label}`;
        row.append(head);
        const values = columns[name].filter((n) => n != null);
        for (const value of [columns[name].at(-1), values.length ? Math.max(...values) : null]) {
          const cell = row.insertCell();
          cell.className = "n";
          cell.textContent = text(value);
        }
      }
    }
  }

  async function update() {
    const since = columns.time_ms?.at(-1) ?? 0;
    const response = await window.kbroker.ask(`${charts.dataset.rates}?since=${since}`);
    if (!response) return;
    const fresh = (await response.json()).columns;
    for (const name of Object.keys(fresh)) columns[name] = [...(columns[name] ?? []), ...fresh[name]];
    const oldest = (columns.time_ms.at(-1) ?? 0) - KEEP_S * 1000;
    const drop = columns.time_ms.findIndex((ms) => ms >= oldest);
    for (const name of Object.keys(columns)) columns[name] = columns[name].slice(Math.max(0, drop));
    if (!columns.time_ms.length) return;
    document.getElementById("collecting").hidden = true;
    if (!drawn.length) for (const host of charts.querySelectorAll(".chart")) make(host);
    else for (const {plot, lines} of drawn) plot.setData(data(lines));
    setTimeout(() => { // after the chart is drawn, which empties its legend
      for (const {plot} of drawn) if (!(plot.cursor.left >= 0)) plot.setLegend({idx: columns.time_ms.length - 1});
    }, 50);
    table();
  }

  function redraw() { // in the colours of another theme
    while (drawn.length) drawn.pop().plot.destroy();
    if (columns.time_ms?.length) for (const host of charts.querySelectorAll(".chart")) make(host);
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", () => { for (const {plot, host} of drawn) plot.setSize({width: Math.max(280, host.clientWidth), height: 190}); });
  window.kbroker.show(update);
})();
