/* Shared by all views: elements, requests to the server, tables, formatting, polling. */
"use strict";
(function (S) {
  const main = document.getElementById("main");
  const LIVE_MS = 1000; // between two requests for a run
  const LIST_MS = 2500; // for lists

  // --- elements and formatting ---

  /* h("td", {class: "n"}, "12") is an element; text is text, never markup. */
  function h(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  const trouble = document.getElementById("trouble");
  async function ask(path) {
    let answer;
    try {
      answer = await fetch(path, { headers: { Accept: "application/json" } });
    } catch (error) {
      trouble.textContent = "The viewer does not answer. Is it still running? The page tries again.";
      trouble.hidden = false;
      throw error;
    }
    trouble.hidden = true;
    if (answer.status === 204) return null;
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }

  const query = (pairs) => pairs.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
  const whole = S.whole;
  const part = (steps, asked) => h("progress", { max: asked || 1, value: Math.min(steps, asked || 1), "aria-label": "share of the steps asked for" });
  const badge = (state) => h("span", { class: `badge ${state}` }, String(state ?? "–").replace("_", " "));
  function interval(of, digits) {
    const say = (value) => S.number(value === null || digits === undefined ? value : Number(value.toPrecision(digits)));
    return of.low === null ? say(of.estimate) : `${say(of.estimate)} [${say(of.low)}, ${say(of.high)}]`;
  }

  /* The values of a sweep's trial as text; "" for other runs. */
  S.values = (trial) => (trial ? Object.entries(trial.values).map(([key, value]) => `${key} ${typeof value === "number" ? S.number(value) : typeof value === "string" ? value : JSON.stringify(value)}`).join(", ") : "");

  /* A square of a group's colour and its name. */
  function swatch(i, words) {
    const mark = h("i", {});
    mark.style.cssText = `display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:8px;vertical-align:-1px;background:${S.color(Math.max(0, i), S.theme())}`;
    return h("span", {}, mark, words);
  }

  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    const s = Math.round(seconds);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  }

  function when(iso) {
    if (!iso) return "–";
    const date = new Date(iso);
    return h("time", { datetime: iso, title: date.toLocaleString() }, date.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }));
  }

  function table(columns, rows, how, kind) {
    const classes = (column) => [column.n ? "n" : "", column.class || ""].join(" ").trim() || null;
    return h("div", { class: "card wide" }, h("table", { class: how || null },
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.n ? "n" : null }, column.title)))),
      h("tbody", {}, rows.map((row) => h("tr", { class: kind ? kind(row) : null }, columns.map((column) => h("td", { class: classes(column), "data-label": column.title }, column.cell(row))))))));
  }

  /* Replace an element's content; the keyboard focus stays where it was. */
  function swap(holder, ...children) {
    const nameOf = (element) => element.getAttribute("href") || element.getAttribute("aria-label");
    const active = holder.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    holder.replaceChildren(...children);
    if (active) [...holder.querySelectorAll("a, button, input")].find((element) => nameOf(element) === active)?.focus();
  }

  const keep = {
    get: (key, otherwise) => {
      try {
        return JSON.parse(localStorage.getItem(`slipstream.${key}`)) ?? otherwise;
      } catch {
        return otherwise;
      }
    },
    set: (key, value) => {
      try {
        localStorage.setItem(`slipstream.${key}`, JSON.stringify(value));
      } catch {} // a browser without storage
    },
  };

  // --- polling ---

  /* Call repeatedly until the view is left; not while the page is hidden, and never twice at once. */
  function follow(look, every) {
    let over = false;
    let timer = 0;
    const ends = [];
    async function turn() {
      if (over) return;
      if (!document.hidden) {
        try {
          await look();
        } catch (error) {
          if (trouble.hidden) console.error(error);
          if (!over && trouble.hidden && !main.querySelector("h1")) main.replaceChildren(h("h1", {}, "This cannot be shown"), h("p", {}, error.message));
        }
      }
      if (!over) timer = setTimeout(turn, every);
    }
    turn();
    return { stop: () => { over = true; clearTimeout(timer); ends.forEach((end) => end()); }, atEnd: (end) => ends.push(end) };
  }

  S.views = {}; // by the first word of the address
  S.page = { main, trouble, LIVE_MS, LIST_MS, h, ask, query, whole, part, badge, interval, duration, when, table, swap, keep, follow, swatch };
})(window.Slipstream);
