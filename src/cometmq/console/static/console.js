// The console's own script: keys, colours, times, plots, live figures. Pages work without it, but do not live.
"use strict";
(() => {
  const $ = (what, inside = document) => inside.querySelector(what);
  const $$ = (what, inside = document) => [...inside.querySelectorAll(what)];

  // --- times: pages of a first visit are in UTC, since the server does not know the reader's zone yet
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const two = (number) => String(number).padStart(2, "0");
  const local = (moment) =>
    `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} ` +
    `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
  const showTimes = (inside) => {
    if (document.body.dataset.zone === zone) return;
    for (const time of $$("time[datetime]", inside)) {
      time.textContent = local(new Date(time.dateTime));
      time.title = `${time.textContent} ${zone}`;
    }
  };
  showTimes(document);
  if (document.body.dataset.zone !== zone) for (const place of $$("[data-zone-name]")) place.textContent = zone;
  document.addEventListener("htmx:load", (loaded) => showTimes(loaded.target));

  // --- light and dark
  const isDark = () =>
    (document.documentElement.dataset.theme ||
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const turn = () => { window.setTheme(isDark() ? "light" : "dark"); drawAll(); };
  $("#theme")?.addEventListener("click", turn);

  // --- keys
  let going = false;
  document.addEventListener("keydown", (key) => {
    if (key.ctrlKey || key.metaKey || key.altKey || key.target.closest("input, textarea, select")) return;
    if (going) {
      going = false;
      $(`.nav a[data-key="${CSS.escape(key.key)}"]`)?.click();
      return;
    }
    if (key.key === "g") { going = true; setTimeout(() => { going = false; }, 1500); }
    else if (key.key === "/") { const search = $("input[type=search]"); if (search) { key.preventDefault(); search.focus(); } }
    else if (key.key === "?") location.href = "/keys";
    else if (key.key === "d") turn();
  });

  // --- plots
  const number = (value) => value == null ? "–" : value.toLocaleString("en-US", { maximumFractionDigits: 1 });
  const size = (value) => {
    if (value == null) return "–";
    for (const [unit, factor] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (value >= factor) return `${(value / factor).toFixed(1)} ${unit}`;
    return `${Math.round(value)} B`;
  };
  const plots = [];
  const draw = (plot) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const { place, data, series, names, unit } = plot;
    const shown = (value) => unit === "B" ? size(value) : number(value) + (unit === "%" ? " %" : "");
    const options = {
      width: Math.max(240, place.clientWidth), height: 150,
      padding: [8, 8, 0, 0],
      cursor: { y: false },
      legend: { live: true },
      scales: { x: { range: (_, low, high) => low === high ? [low - 60, high + 1] : [low, high] }, y: { range: (_, low, high) => unit === "%" ? [0, 100] : [0, Math.max(high || 0, 1) * 1.1] } },
      axes: [
        { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, space: 70,
          size: 30,
          values: (_, ticks, __, ___, step) => ticks.map((tick) => plot.data[0].length ? local(new Date(tick * 1000)).slice(11, step < 60 ? 19 : 16) : "") },
        { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, size: 64, space: 34,
          values: (_, ticks) => ticks.map(shown) },
      ],
      series: [
        { label: document.body.dataset.time, value: (_, value) => value == null ? "–" : local(new Date(value * 1000)).slice(11) },
        ...series.map((_, index) => ({
          label: names[index], stroke: colour(`--plot-${index + 1}`), width: 2,
          fill: index ? undefined : colour("--plot-fill"), points: { show: false }, value: (_, value) => shown(value),
        })),
      ],
    };
    plot.chart?.destroy();
    plot.chart = new uPlot(options, data, place);
  };
  const drawAll = () => plots.forEach(draw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  for (const group of $$("[data-history]")) {
    const kept = 720;
    fetch(group.dataset.history, { headers: { accept: "application/json" } }).then((answer) => answer.json()).then((rows) => {
      const mine = $$("[data-series]", group).map((place) => {
        const series = place.dataset.series.split(",");
        const plot = {
          place, series, names: place.dataset.names.split(","), unit: place.dataset.unit || "",
          data: [rows.map((row) => row.time), ...series.map((name) => rows.map((row) => row[name]))],
        };
        plots.push(plot); draw(plot);
        return plot;
      });
      if (group.dataset.every) {
        setInterval(() => fetch(group.dataset.history).then((answer) => answer.json()).then((newer) => {
          for (const plot of mine) {
            plot.data = [newer.map((row) => row.time), ...plot.series.map((name) => newer.map((row) => row[name]))];
            plot.chart.setData(plot.data);
          }
        }).catch(() => group.classList.add("stale")), group.dataset.every * 1000);
      }
      if (!group.dataset.live) return;
      const stream = new EventSource(group.dataset.live);
      stream.addEventListener("sample", (message) => {
        const sample = JSON.parse(message.data);
        group.classList.remove("stale");
        if (sample.failure) return;
        for (const plot of mine) {
          plot.data[0].push(sample.time);
          plot.series.forEach((name, index) => plot.data[index + 1].push(sample[name]));
          if (plot.data[0].length > kept) plot.data.forEach((column) => column.shift());
          plot.chart.setData(plot.data);
        }
        for (const cell of $$("[data-figure]")) {
          const [broker, figure] = cell.dataset.figure.split(":");
          const value = figure ? sample.brokers[broker]?.[figure] : sample[broker];
          if (value !== undefined) cell.textContent = number(value);
        }
      });
      stream.addEventListener("refused", () => stream.close());
      stream.addEventListener("error", () => group.classList.add("stale"));
    }).catch(() => group.classList.add("stale"));
  }

  // --- live tail: texts are put in as text, never as markup
  const tail = $("[data-tail]");
  if (tail) {
    const kept = 500, rows = $("tbody", tail), state = $("#tail-state"), pause = $("#pause");
    let skipped = 0, stream = null;
    const cell = (row, text, kind) => {
      const made = row.insertCell();
      if (kind) made.className = kind;
      made.textContent = text;
      return made;
    };
    const show = (line) => {
      const row = rows.insertRow(0);
      const link = document.createElement("a");
      link.href = line.address;
      link.textContent = local(new Date(line.stored));
      row.insertCell().append(link);
      cell(row, line.place, "place"); cell(row, line.tag); cell(row, line.keys);
      const code = document.createElement("code");
      code.textContent = line.body;
      cell(row, "", "body").append(code);
      if (rows.rows.length > kept) rows.deleteRow(kept);
    };
    const open = () => {
      stream = new EventSource(tail.dataset.tail);
      stream.addEventListener("open", () => { state.textContent = state.dataset.open; });
      stream.addEventListener("messages", (message) => {
        const news = JSON.parse(message.data);
        news.lines.forEach(show);
        skipped += news.skipped;
        state.textContent = state.dataset.open + (skipped ? ` ${number(skipped)} ${state.dataset.skipped}.` : "");
      });
      stream.addEventListener("refused", (message) => { state.textContent = JSON.parse(message.data); stream.close(); });
      stream.addEventListener("error", () => { if (stream.readyState !== EventSource.CLOSED) state.textContent = state.dataset.lost; });
    };
    pause.addEventListener("click", () => {
      [pause.textContent, pause.dataset.other] = [pause.dataset.other, pause.textContent];
      if (stream) { stream.close(); stream = null; } else open();
    });
    open();
  }

  // --- forms that choose by themselves
  for (const field of $$("[data-submits]")) field.addEventListener("change", () => field.form.requestSubmit());
  for (const box of $$("[data-checks]")) {
    box.addEventListener("change", () => { for (const one of $$(`input[name="${box.dataset.checks}"]`)) one.checked = box.checked; });
  }
})();
