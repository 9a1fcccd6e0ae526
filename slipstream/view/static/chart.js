/* A chart of a few curves over steps, in SVG. Classic script; needs player.js for the colours.

   Slipstream.chart(element, {title, series, onZoom, height, steps, share}) returns {update(series, steps), zoom(low, high), destroy}.
     series   [{name, steps, values, low, high, color, faint, smoothed, dashedFrom}]; low and high make a band; null is no value;
              faint: drawn behind; smoothed: a line drawn over another, whose measured values are the ones told; dashed from a step on
     steps    [from, to] of the axis, the same for all charts that are seen together; without it from 0 to the last
     share    drawn from 0 to 1
     onZoom   (low, high) when someone marks a stretch with the mouse or zooms by key; (null, null) to see all again
   Keys: left and right move the cursor, + and - zoom, Escape shows all. */
"use strict";
(function (S) {
  const SVG = "http://www.w3.org/2000/svg";
  const FEW = 40; // points of a line that are marked one by one
  const MARGIN = { left: 54, right: 12, top: 6, bottom: 22 };

  function draw(tag, attributes, text) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  const SHORT = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
  S.number = function (value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e15 || (size > 0 && size < 1e-4)) return value.toExponential(2);
    if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    return String(Number(value.toPrecision(4)));
  };
  S.shortNumber = function (value) {
    const unit = SHORT.find(([size]) => Math.abs(value) >= size);
    return unit ? `${Number((value / unit[0]).toPrecision(4))}${unit[1]}` : String(Number(value.toPrecision(4)));
  };

  S.whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));

  /* Round numbers from low to high, about so many. */
  function ticks(low, high, about) {
    const rough = (high - low) / about || 1;
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = power * [1, 2, 2.5, 5, 10].find((k) => k * power >= rough * (1 - 1e-9));
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    return found;
  }

  function range(all) {
    let [low, high] = [Infinity, -Infinity];
    for (const values of all) {
      for (const value of values) {
        if (value === null || !Number.isFinite(value)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    if (low > high || (low === 0 && high === 0)) return [0, 1];
    return low === high ? [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)] : [low, high];
  }

  /* The path through the points; of many that share a pixel their least and greatest, so that no peak is lost. */
  function path(steps, values, x, y) {
    const parts = [];
    let pen = "M";
    let [column, least, greatest, last] = [null, 0, 0, 0];
    const flush = () => {
      if (column === null) return;
      parts.push(`${pen}${column.toFixed(1)} ${y(least).toFixed(1)}`);
      if (greatest !== least) parts.push(`L${column.toFixed(1)} ${y(greatest).toFixed(1)}`);
      if (last !== greatest) parts.push(`L${column.toFixed(1)} ${y(last).toFixed(1)}`);
      pen = "L";
      column = null;
    };
    for (let i = 0; i < steps.length; i++) {
      if (values[i] === null || !Number.isFinite(values[i])) {
        flush();
        pen = "M";
        continue;
      }
      const at = Math.round(x(steps[i]) * 2) / 2;
      if (at !== column) {
        flush();
        [column, least, greatest] = [at, values[i], values[i]];
      }
      least = Math.min(least, values[i]);
      greatest = Math.max(greatest, values[i]);
      last = values[i];
    }
    flush();
    return parts.join("");
  }

  /* A line's points up to a step, and from there on: the second is drawn dashed. */
  function split(line) {
    const { steps, values, dashedFrom } = line;
    if (dashedFrom === null || dashedFrom === undefined) return [[steps, values]];
    const cut = Math.max(1, steps.filter((step) => step <= dashedFrom).length);
    return [[steps.slice(0, cut), values.slice(0, cut)], [steps.slice(cut - 1), values.slice(cut - 1)]];
  }

  function area(line, x, y) {
    const known = line.steps.map((_, i) => i).filter((i) => line.low[i] !== null && line.high[i] !== null);
    if (known.length < 2) return "";
    const there = known.map((i) => `${x(line.steps[i]).toFixed(1)} ${y(line.high[i]).toFixed(1)}`);
    const back = known.reverse().map((i) => `${x(line.steps[i]).toFixed(1)} ${y(line.low[i]).toFixed(1)}`);
    return `M${there.join("L")}L${back.join("L")}Z`;
  }

  /* Index of the point nearest to a step. */
  function nearest(steps, step) {
    let [low, high] = [0, steps.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle;
      else high = middle;
    }
    return Math.abs(steps[low] - step) <= Math.abs(steps[high] - step) ? low : high;
  }

  S.chart = function (element, what) {
    let series = what.series || [];
    let whole = what.steps || null;
    let seen = null; // [low, high] steps while zoomed
    let cursor = null; // step under the mouse
    let picked = null; // [from, to] pixels while marking
    let place = null; // how steps and values become pixels
    const height = what.height || 190;

    const title = document.createElement("h3");
    title.textContent = what.title;
    const told = document.createElement("output");
    const back = document.createElement("button");
    back.type = "button";
    back.textContent = "show all";
    back.hidden = true;
    const head = document.createElement("header");
    head.append(title, told, back);
    const svg = draw("svg", { height: height, role: "img", tabindex: "0" });
    const legend = document.createElement("ul");
    legend.className = "legend";
    element.classList.add("card", "chart");
    element.replaceChildren(head, svg, legend);

    const colorOf = (line, i) => line.color || S.color(i, S.theme());

    function render() {
      const width = svg.clientWidth;
      if (!width) return;
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const full = whole || range([[0], ...series.map((line) => line.steps.slice(-1))]);
      const [from, to] = seen || full;
      const shown = series.flatMap((line) => {
        const inside = (values) => (values || []).filter((_, i) => line.steps[i] >= from && line.steps[i] <= to);
        return [inside(line.values), inside(line.low), inside(line.high)];
      });
      let [low, high] = range(what.share ? [...shown, [0, 1]] : shown);
      const room = 0.06 * (high - low);
      [low, high] = [low - room, high + room];
      const x = (step) => MARGIN.left + ((step - from) / (to - from || 1)) * (width - MARGIN.left - MARGIN.right);
      const y = (value) => height - MARGIN.bottom - ((value - low) / (high - low)) * (height - MARGIN.top - MARGIN.bottom);
      place = { x: x, y: y, from: from, to: to, width: width };
      svg.replaceChildren();
      const id = `clip-${Math.random().toString(36).slice(2)}`;
      const clip = draw("clipPath", { id: id });
      clip.append(draw("rect", { x: MARGIN.left, y: 0, width: width - MARGIN.left - MARGIN.right + 2, height: height - MARGIN.bottom + 1 }));
      svg.append(clip);
      for (const value of ticks(low, high, 4)) {
        svg.append(draw("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }));
        svg.append(draw("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, S.shortNumber(value)));
      }
      for (const step of ticks(from, to, width / 110).filter(Number.isInteger)) {
        svg.append(draw("line", { class: "axis", x1: x(step), x2: x(step), y1: height - MARGIN.bottom, y2: height - MARGIN.bottom + 4 }));
        svg.append(draw("text", { x: x(step), y: height - 5, "text-anchor": x(step) > width - 40 ? "end" : "middle" }, S.shortNumber(step)));
      }
      svg.append(draw("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: height - MARGIN.bottom, y2: height - MARGIN.bottom }));
      const group = draw("g", { "clip-path": `url(#${id})` });
      svg.append(group);
      series.forEach((line, i) => {
        if (line.low) group.append(draw("path", { d: area(line, x, y), fill: colorOf(line, i), opacity: 0.16 }));
      });
      series.forEach((line, i) => {
        split(line).forEach(([steps, values], part) => group.append(draw("path", { class: `line${line.faint ? " faint" : ""}${part ? " dashed" : ""}`, d: path(steps, values, x, y), stroke: colorOf(line, i) })));
        if (line.faint || line.smoothed || line.steps.length > FEW) return;
        line.steps.forEach((step, k) => { // what was measured, where it is little
          if (line.values[k] !== null && Number.isFinite(line.values[k])) group.append(draw("circle", { cx: x(step), cy: y(line.values[k]), r: line.steps.length === 1 ? 3.5 : 2.2, fill: colorOf(line, i) }));
        });
      });
      mark();
      tell();
    }

    /* The cursor and what is marked, drawn anew without the rest. */
    function mark() {
      svg.querySelectorAll(".cursor, .dot, .pick").forEach((old) => old.remove());
      if (!place) return;
      if (picked) {
        const [a, b] = [Math.min(...picked), Math.max(...picked)];
        svg.append(draw("rect", { class: "pick", x: a, y: 0, width: b - a, height: height - MARGIN.bottom }));
      }
      if (cursor === null) return;
      const at = place.x(cursor);
      svg.append(draw("line", { class: "cursor", x1: at, x2: at, y1: 0, y2: height - MARGIN.bottom }));
      series.forEach((line, i) => {
        if (line.faint || !line.steps.length) return;
        const k = nearest(line.steps, cursor);
        if (line.values[k] === null) return;
        svg.append(draw("circle", { class: "dot", cx: place.x(line.steps[k]), cy: place.y(line.values[k]), r: 3.5, fill: colorOf(line, i) }));
      });
    }

    function tell() {
      const over = series.find((line) => line.smoothed && line.steps.length); // drawn, but not what was measured
      const main = series.filter((line) => (over ? !line.smoothed : !line.faint) && line.steps.length);
      const valueOf = (line) => line.values[cursor === null ? line.values.length - 1 : nearest(line.steps, cursor)];
      const first = main[0];
      const step = first && (cursor === null ? first.steps[first.steps.length - 1] : first.steps[nearest(first.steps, cursor)]);
      told.textContent = !first ? "" : cursor === null && main.length > 1 ? "" :
        main.length > 1 ? `at ${S.whole(step)}` : `${S.number(valueOf(first))}${cursor === null ? "" : ` at ${S.whole(step)}${over ? `, smoothed ${S.number(valueOf(over))}` : ""}`}`;
      svg.setAttribute("aria-label", first
        ? `${what.title} over steps: ${main.map((line) => `${main.length > 1 ? `${line.name} ` : ""}${S.number(valueOf(line))}`).join(", ")} at step ${S.number(step)}.`
        : `${what.title}: no values yet.`);
      legend.replaceChildren();
      if (main.length < 2) return;
      series.forEach((line, i) => {
        if (line.faint || !line.steps.length) return;
        const entry = document.createElement("li");
        const swatch = document.createElement("i");
        swatch.style.background = colorOf(line, i);
        entry.append(swatch, `${line.name} ${S.number(valueOf(line))}`);
        legend.append(entry);
      });
    }

    function zoom(low, high) {
      seen = low === null ? null : [low, high];
      back.hidden = !seen;
      render();
      if (what.onZoom) what.onZoom(low, high);
    }

    const stepAt = (px) => place.from + ((px - MARGIN.left) / (place.width - MARGIN.left - MARGIN.right)) * (place.to - place.from);
    const within = (step) => Math.max(place.from, Math.min(place.to, step));
    svg.addEventListener("pointermove", (event) => {
      if (!place) return;
      cursor = within(stepAt(event.offsetX));
      if (picked) picked[1] = Math.max(MARGIN.left, Math.min(place.width - MARGIN.right, event.offsetX));
      mark();
      tell();
    });
    svg.addEventListener("pointerleave", () => {
      cursor = null;
      if (place) mark();
      tell();
    });
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0 || !place) return;
      picked = [event.offsetX, event.offsetX];
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointerup", () => {
      if (!picked) return;
      const [a, b] = [Math.min(...picked), Math.max(...picked)];
      picked = null;
      if (b - a > 8) zoom(Math.round(within(stepAt(a))), Math.round(within(stepAt(b))));
      else mark();
    });
    svg.addEventListener("dblclick", () => zoom(null, null));
    back.addEventListener("click", () => zoom(null, null));
    svg.addEventListener("keydown", (event) => {
      if (!place || event.ctrlKey || event.metaKey || event.altKey) return;
      const wide = place.to - place.from;
      const at = cursor === null ? place.to : cursor;
      const does = {
        ArrowRight: () => (cursor = within(at + wide / 50)),
        ArrowLeft: () => (cursor = within(at - wide / 50)),
        "+": () => zoom(Math.round(within(at - wide / 4)), Math.round(within(at + wide / 4))),
        "-": () => zoom(null, null),
        Escape: () => ((cursor = null), zoom(null, null)),
      }[event.key];
      if (!does) return;
      event.preventDefault();
      does();
      mark();
      tell();
    });
    const watch = new ResizeObserver(render);
    watch.observe(svg);
    document.addEventListener("slipstream-theme", render);
    render();

    return {
      update: (next, steps) => ((series = next), (whole = steps || whole), render()),
      zoom: zoom,
      isZoomed: () => seen !== null,
      destroy: () => {
        watch.disconnect();
        document.removeEventListener("slipstream-theme", render);
        element.remove();
      },
    };
  };
})(window.Slipstream);
