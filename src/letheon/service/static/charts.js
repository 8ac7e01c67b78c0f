// Draws charts from the table on the same page: both show the same numbers.
//
// <table data-charts> has a th[data-column] per chart (data-limit: the tolerance), a tr[data-at]
// per version (seconds since 1970), and td[data-value][data-basis] cells.
// <figure data-chart="COLUMN"> has a .chart-plot for the chart and an output for its value as text.
"use strict";

(() => {
  const HEIGHT = 168;
  const SIZE = 3.5;
  const DAY = 86400;
  const WORDS = { measured: "measured", proxy: "estimated", "by-proof": "by proof" };

  const colours = () => {
    const of = window.desk.colour;
    return {
      line: of("--chart-line"),
      fill: of("--chart-fill"),
      limit: of("--chart-limit"),
      grid: of("--line"),
      text: of("--soft"),
      paper: of("--surface"),
    };
  };

  const columnOf = (table, name) => {
    const head = table.querySelector(`th[data-column="${CSS.escape(name)}"]`);
    const rows = [...table.querySelectorAll("tbody tr[data-at]")].map((row) => {
      const cell = row.cells[head.cellIndex];
      const value = Number.parseFloat(cell.dataset.value);
      const point = { at: Number(row.dataset.at), value, basis: cell.dataset.basis || "" };
      return { ...point, text: cell.dataset.text || cell.dataset.value, name: row.cells[0].textContent.trim() };
    });
    const limit = Number.parseFloat(head.dataset.limit);
    const points = rows.filter((row) => Number.isFinite(row.value));
    return { points: points.sort((a, b) => a.at - b.at), limit };
  };

  // Each basis has its own shape, so that the chart can be read without colour.
  const drawPoints = (points, paint) => (plot) => {
    const { ctx } = plot;
    const ratio = uPlot.pxRatio;
    const size = SIZE * ratio;
    ctx.save();
    ctx.setLineDash([]);
    ctx.lineWidth = 1.75 * ratio;
    ctx.strokeStyle = paint.line;
    for (const point of points) {
      const x = plot.valToPos(point.at, "x", true);
      const y = plot.valToPos(point.value, "y", true);
      ctx.beginPath();
      if (point.basis === "by-proof") ctx.rect(x - size, y - size, 2 * size, 2 * size);
      else ctx.arc(x, y, size, 0, 2 * Math.PI);
      ctx.fillStyle = point.basis === "proxy" ? paint.paper : paint.line;
      ctx.fill();
      ctx.stroke();
    }
    ctx.restore();
  };

  const drawLimit = (limit, paint) => (plot) => {
    if (!Number.isFinite(limit)) return;
    const { ctx, bbox } = plot;
    const y = plot.valToPos(limit, "y", true);
    ctx.save();
    ctx.strokeStyle = paint.limit;
    ctx.lineWidth = 1.5 * uPlot.pxRatio;
    ctx.setLineDash([6 * uPlot.pxRatio, 4 * uPlot.pxRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.restore();
  };

  const short = (value) =>
    Math.abs(value) >= 10000
      ? Intl.NumberFormat("en", { notation: "compact" }).format(value)
      : String(Number.isInteger(value) ? value : Number(value.toPrecision(3)));

  // Axes of counts have ticks at whole numbers only.
  const WHOLE = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5, 6].map((power) => digit * 10 ** power)).sort((a, b) => a - b);
  const steps = (points) =>
    points.every((point) => Number.isInteger(point.value)) ? { incrs: WHOLE } : {};

  // Computed from the points: for a single point uPlot would show a range of years.
  const rangeOfTime = (points) => () => {
    const low = points[0].at;
    const high = points[points.length - 1].at;
    const pad = Math.max((high - low) * 0.05, DAY);
    return [low - pad, high + pad];
  };

  const dayOf = (seconds, more) =>
    new Date(seconds * 1000).toLocaleDateString("en-GB", { timeZone: "UTC", ...more });

  const rangeOfValues = (points, limit, fromZero) => () => {
    const values = points.map((point) => point.value);
    if (Number.isFinite(limit)) values.push(limit);
    const high = Math.max(...values);
    const low = Math.min(...values);
    if (fromZero && low >= 0) return [0, high > 0 ? high * 1.18 : 1];
    const pad = (high - low || Math.abs(high) || 1) * 0.15;
    return [low - pad, high + pad];
  };

  const axis = (paint, more) => ({
    stroke: paint.text,
    font: "11px system-ui, sans-serif",
    grid: { stroke: paint.grid, width: 1 },
    ticks: { show: false },
    ...more,
  });

  const options = (column, paint, width, fromZero, speak) => ({
    width,
    height: HEIGHT,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
    scales: {
      x: { time: true, range: rangeOfTime(column.points) },
      y: { range: rangeOfValues(column.points, column.limit, fromZero) },
    },
    axes: [
      axis(paint, {
        space: 60,
        size: 28,
        grid: { show: false },
        incrs: [1, 2, 3, 7, 14, 30, 60, 90, 180, 365, 730].map((days) => days * DAY),
        values: (plot, ticks) => ticks.map((at) => dayOf(at, { day: "numeric", month: "short" })),
      }),
      axis(paint, {
        space: 34,
        size: 48,
        values: (plot, ticks) => ticks.map(short),
        ...steps(column.points),
      }),
    ],
    series: [
      {},
      { stroke: paint.line, fill: paint.fill, width: 1.5, points: { show: false } },
    ],
    hooks: {
      draw: [drawLimit(column.limit, paint), drawPoints(column.points, paint)],
      setCursor: [(plot) => speak(plot.cursor.idx)],
    },
  });

  const phrase = (point) => {
    const basis = WORDS[point.basis];
    const day = dayOf(point.at, { day: "numeric", month: "short", year: "numeric" });
    return `${point.text}, ${point.name}, ${day}${basis ? `, ${basis}` : ""}`;
  };

  const draw = (figure, table) => {
    const column = columnOf(table, figure.dataset.chart);
    const place = figure.querySelector(".chart-plot");
    place.replaceChildren();
    if (column.points.length === 0) {
      figure.classList.add("is-empty");
      place.textContent = "No measurements yet.";
      return;
    }
    const output = figure.querySelector("output");
    const last = column.points[column.points.length - 1];
    const speak = (index) => {
      const point = index == null ? last : column.points[index];
      if (output && point) output.textContent = phrase(point);
    };
    const lines = [
      column.points.map((point) => point.at),
      column.points.map((point) => point.value),
    ];
    const fromZero = figure.dataset.zero !== "no";
    const width = Math.max(place.clientWidth, 160);
    new uPlot(options(column, colours(), width, fromZero, speak), lines, place);
    speak(null);
  };

  const drawAll = () => {
    const table = document.querySelector("table[data-charts]");
    if (!table || typeof uPlot === "undefined") return;
    for (const figure of document.querySelectorAll("figure[data-chart]")) draw(figure, table);
  };

  let waiting = 0;
  const drawSoon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(drawAll);
  };

  const start = () => {
    const charts = document.querySelector(".charts");
    if (!charts) return;
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) < 1) return;
      width = entry.contentRect.width;
      drawSoon();
    }).observe(charts);
    // A canvas does not follow the style sheet, so it is drawn again when the theme changes.
    document.addEventListener("desk:theme", drawSoon);
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
