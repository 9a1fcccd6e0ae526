/* The page: views of runs, each a function that fills <main> and asks the server again while it is shown. */
"use strict";
(function (S) {
  const main = document.getElementById("main");
  const LIVE_MS = 1000; // between two looks at a run
  const LIST_MS = 2500; // at lists

  // --- small things ---

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
      trouble.textContent = "The viewer does not answer; was it ended? The page tries again.";
      trouble.hidden = false;
      throw error;
    }
    trouble.hidden = true;
    if (answer.status === 204) return null;
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }

  const query = (pairs) => pairs.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
  const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
  const part = (steps, asked) => h("progress", { max: asked || 1, value: Math.min(steps, asked || 1), "aria-label": "part of the steps asked for" });
  const badge = (state) => h("span", { class: `badge ${state}` }, state);
  function interval(of, digits) {
    const say = (value) => S.number(value === null || digits === undefined ? value : Number(value.toPrecision(digits)));
    return of.low === null ? say(of.estimate) : `${say(of.estimate)} [${say(of.low)}, ${say(of.high)}]`;
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

  function table(columns, rows, how) {
    const classes = (column) => [column.n ? "n" : "", column.class || ""].join(" ").trim() || null;
    return h("div", { class: "card wide" }, h("table", { class: how || null },
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.n ? "n" : null }, column.title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((column) => h("td", { class: classes(column), "data-label": column.title }, column.cell(row))))))));
  }

  /* Put other content in a place; whoever had reached something in it by keyboard stays there. */
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
      } catch {} // a browser that keeps nothing
    },
  };

  // --- light and dark ---

  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const themeButton = document.getElementById("theme");
  function applyTheme() {
    const chosen = keep.get("theme", "system");
    document.documentElement.dataset.theme = chosen === "system" ? (system.matches ? "dark" : "light") : chosen;
    const words = { system: "as the system has them", light: "light", dark: "dark" }[chosen];
    themeButton.textContent = { system: "◐", light: "☀", dark: "☾" }[chosen];
    themeButton.setAttribute("aria-label", `Colours: ${words}`);
    themeButton.title = `Colours: ${words}`;
    document.dispatchEvent(new Event("slipstream-theme"));
  }
  themeButton.addEventListener("click", () => {
    const order = ["system", "light", "dark"];
    keep.set("theme", order[(order.indexOf(keep.get("theme", "system")) + 1) % 3]);
    applyTheme();
  });
  system.addEventListener("change", applyTheme);

  // --- views come and go ---

  let shown = { stop: () => {} };

  /* Call again and again until the view is left; not while nobody looks, and never twice at once. */
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

  function route() {
    shown.stop();
    const [path, search] = location.hash.replace(/^#/, "").split("?");
    const [first, id, tab] = path.split("/").filter(Boolean);
    const views = { run: () => runView(id, tab || "curves"), compare: () => compareView(new URLSearchParams(search)), leaderboard: leaderboardView, federations: () => (id ? federationView(id) : federationsView()) };
    document.querySelectorAll(".top nav a").forEach((link) => {
      const current = link.dataset.view === (views[first] ? (first === "run" ? "runs" : first) : "runs");
      if (current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    main.replaceChildren(h("p", { class: "quiet" }, "Loading …"));
    shown = (views[first] || runsView)();
  }

  // --- all runs ---

  const picked = new Set();

  function runsView() {
    document.title = "Runs · Slipstream";
    let wanted = "";
    let latest = null;
    const holder = h("div", {});
    const search = h("input", { type: "search", class: "grow", placeholder: "Filter by name, scenario, algorithm", "aria-label": "Filter runs", oninput: () => { wanted = search.value.toLowerCase(); fill(); } });
    const count = h("span", { class: "quiet", role: "status" });
    const button = h("button", { type: "button", class: "primary", disabled: true, onclick: () => (location.hash = `#/compare?${query([...picked].map((id) => ["run", id]))}`) }, "Compare");
    const page = [h("h1", {}, "Runs"), h("div", { class: "bar" }, search, button, count), holder];

    function pick(id, on) {
      if (on) picked.add(id);
      else picked.delete(id);
      button.disabled = picked.size < 2;
      button.textContent = picked.size ? `Compare ${picked.size}` : "Compare";
    }

    function fill() {
      const runs = latest.runs.filter((run) => `${run.name} ${run.scenario} ${run.algo} ${run.state}`.toLowerCase().includes(wanted));
      count.textContent = `${runs.length} of ${latest.runs.length}`;
      swap(holder, runs.length ? table([
        { title: "Run", class: "name", cell: (run) => h("span", {}, h("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, checked: picked.has(run.id), onchange: (event) => pick(run.id, event.target.checked) }), " ", h("a", { href: `#/run/${run.id}` }, run.name)) },
        { title: "State", cell: (run) => badge(run.state) },
        { title: "Scenario", cell: (run) => run.scenario },
        { title: "Algorithm", cell: (run) => run.algo },
        { title: "Seed", n: true, cell: (run) => String(run.seed ?? "–") },
        { title: "Steps", n: true, cell: (run) => h("span", {}, whole(run.steps), run.state === "finished" ? "" : part(run.steps, run.timesteps)) },
        { title: "Return", n: true, cell: (run) => S.number(run.return_mean) },
        { title: "Evaluation", n: true, cell: (run) => S.number(run.evaluation["eval/return_mean"]) },
        { title: "Steps/s", n: true, cell: (run) => whole(run.rate) },
        { title: "Replays", n: true, cell: (run) => (run.replays ? h("a", { href: `#/run/${run.id}/replays` }, String(run.replays)) : "–") },
        { title: "Started", cell: (run) => when(run.started) },
      ], runs, "cards") : h("p", { class: "quiet" }, latest.runs.length ? "No run matches." : `There are no runs in ${latest.roots.join(", ")} yet. Train one: slipstream train head_on`));
    }

    let before = "";
    return follow(async () => {
      const answer = await ask("/api/runs");
      const text = JSON.stringify(answer);
      if (!holder.isConnected) main.replaceChildren(...page);
      if (text === before) return;
      before = text;
      latest = answer;
      const known = new Set(answer.runs.map((run) => run.id));
      [...picked].forEach((id) => known.has(id) || picked.delete(id));
      pick("", false);
      fill();
    }, LIST_MS);
  }

  // --- one run ---

  const FIRST_SHOWN = ["env/return_mean", "eval/return_mean", "eval/success_mean", "eval/clean_fraction", "env/length_mean", "train/policy_loss", "train/value_loss", "train/critic_loss", "train/entropy", "train/approx_kl", "train/explained_variance", "curriculum/phase", "perf/steps_per_s"];
  const GROUPS = { env: "Episodes in training", eval: "Evaluation", train: "Learning", perf: "Speed", replay: "Replay", collector: "Workers", fed: "Federation", stop: "Stopping", curriculum: "Curriculum" };

  function runView(id, tab) {
    let version = null;
    let run = null;
    let body = null;
    let evaluated = null; // return of the newest evaluation
    const standing = h("div", {}); // how it stands
    return begin();

    function begin() {
      const view = follow(async () => {
        if (!run) {
          run = await ask(`/api/runs/${id}`);
          version = run.version;
          document.title = `${run.name} · Slipstream`;
          const tabs = [["curves", "Curves"], ["replays", "Replays"], ["log", "Log"], ["about", "About"]];
          const holder = h("div", {});
          main.replaceChildren(h("h1", {}, run.name), h("p", { class: "path" }, run.path), standing,
            h("nav", { class: "tabs", "aria-label": "About this run" }, tabs.map(([name, title]) => h("a", { href: `#/run/${id}/${name}`, "aria-current": name === tab ? "page" : null }, title))), holder);
          body = { curves: curvesTab, replays: replaysTab, log: logTab, about: aboutTab }[tab] || curvesTab;
          body = body(holder);
          tell(run);
        }
        await body.look();
      }, LIVE_MS);
      view.atEnd(() => body && body.end && body.end());
      return view;
    }

    function tell(now) {
      const last = now.last || {};
      if (tab !== "curves") { // the others need the room
        const words = [run.scenario, run.algo, `seed ${run.metadata.seed ?? "–"}`, `${whole(now.steps)} of ${S.shortNumber(run.timesteps)} steps`];
        standing.replaceChildren(badge(now.state), h("span", { class: "quiet" }, ` ${words.join(" · ")}`));
        return;
      }
      const facts = [
        ["State", badge(now.state)], ["Scenario", run.scenario], ["Algorithm", run.algo], ["Seed", String(run.metadata.seed ?? "–")],
        ["Steps", `${whole(now.steps)} of ${S.shortNumber(run.timesteps)}`], ["Episodes", whole(last.episodes_total)],
        ["Return", S.number(last["env/return_mean"])], ["Evaluation", S.number(evaluationOf(now))],
        ["Steps per second", whole(last["perf/steps_per_s"])], now.state === "running" ? ["Time left", duration(now.seconds_left)] : ["Time", duration(last.time_total_s)],
      ];
      standing.replaceChildren(h("div", { class: "card pad" }, h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))),
        now.state === "finished" ? "" : part(now.steps, run.timesteps));
    }

    function evaluationOf(now) {
      const value = (now.last || {})["eval/return_mean"];
      if (value !== undefined && value !== null) evaluated = value;
      if (evaluated === null) {
        const told = [...(run.events || [])].reverse().find((event) => event["eval/return_mean"] !== undefined);
        evaluated = told ? told["eval/return_mean"] : null;
      }
      return evaluated;
    }

    function curvesTab(holder) {
      const charts = new Map(); // metric -> {chart, low, high}
      let smooth = keep.get("smooth", 0);
      let metrics = [];
      let curves = {};
      const kept = keep.get(`metrics.${run.kind}`, null);
      let wanted = new Set(kept || FIRST_SHOWN);
      const grid = h("div", { class: "charts" });
      const choose = h("details", { class: "card choose" }, h("summary", {}, "Metrics"), h("div", { class: "sets" }));
      const pick = h("select", { "aria-label": "Smoothing", onchange: () => { smooth = Number(pick.value); keep.set("smooth", smooth); redraw(); } },
        [[0, "no smoothing"], [0.6, "some smoothing"], [0.9, "much smoothing"]].map(([value, words]) => h("option", { value: value, selected: value === smooth }, words)));
      holder.append(h("div", { class: "bar" }, pick, h("span", { class: "quiet small" }, "Mark a stretch of a curve to see it in full; Escape shows all.")), choose, grid);

      const isShown = () => metrics.filter((key) => wanted.has(key));

      function fillChoices() {
        const sets = {};
        metrics.forEach((key) => (sets[key.includes("/") ? key.split("/")[0] : "counters"] ||= []).push(key));
        const toggle = (key, on) => {
          if (on) wanted.add(key);
          else wanted.delete(key);
          keep.set(`metrics.${run.kind}`, [...wanted]);
          version = null;
          arrange();
          look();
        };
        choose.querySelector("summary").textContent = `Metrics: ${isShown().length} of ${metrics.length} shown`;
        choose.querySelector(".sets").replaceChildren(...Object.entries(sets).map(([name, keys]) =>
          h("fieldset", {}, h("legend", {}, GROUPS[name] || name), keys.map((key) => h("label", {}, h("input", { type: "checkbox", checked: wanted.has(key), onchange: (event) => toggle(key, event.target.checked) }), " ", key)))));
      }

      /* One chart for every metric that is wanted, in the order of the list of metrics. */
      function arrange() {
        const order = isShown().sort((a, b) => rank(a) - rank(b));
        for (const [key, { chart }] of charts) {
          if (order.includes(key)) continue;
          chart.destroy();
          charts.delete(key);
        }
        order.forEach((key, i) => {
          if (!charts.has(key)) {
            const element = h("section", { "data-metric": key });
            charts.set(key, { element: element, chart: S.chart(element, { title: key, series: [], onZoom: (low, high) => zoom(low, high) }) });
          }
          const { element } = charts.get(key);
          if (grid.children[i] !== element) grid.insertBefore(element, grid.children[i] || null);
        });
        choose.querySelector("summary").textContent = `Metrics: ${order.length} of ${metrics.length} shown`;
      }
      const rank = (key) => (FIRST_SHOWN.includes(key) ? FIRST_SHOWN.indexOf(key) : 100 + metrics.indexOf(key));

      let zoomed = null;
      let zooming = false;
      async function zoom(low, high) {
        if (zooming) return; // all charts show the same steps: the others are told by us
        zooming = true;
        for (const { chart } of charts.values()) chart.zoom(low, high);
        zooming = false;
        zoomed = null;
        if (low === null) {
          redraw();
          return;
        }
        const answer = await ask(`/api/runs/${id}/window?${query([["low", low], ["high", high], ...isShown().map((key) => ["key", key])])}`);
        zoomed = answer.curves;
        redraw();
      }

      function redraw() {
        for (const [key, { chart, element }] of charts) {
          const curve = (zoomed && zoomed[key]) || curves[key];
          if (!curve) continue;
          element.dataset.points = String(curve.steps.length);
          const line = { name: key, steps: curve.steps, values: curve.values };
          const color = S.color(0, S.theme());
          chart.update(smooth ? [{ ...line, color: color, faint: true }, { ...line, color: color, values: smoothed(curve.values, smooth) }] : [{ ...line, color: color }]);
        }
      }
      document.addEventListener("slipstream-theme", redraw);

      async function look() {
        const seen = Object.keys(curves).length && version !== null ? [["seen", version]] : [];
        const answer = await ask(`/api/runs/${id}/curves?${query([...seen, ...isShown().map((key) => ["key", key]), ...(metrics.length ? [] : run.metrics.filter((key) => wanted.has(key)).map((key) => ["key", key]))])}`);
        if (!answer) return;
        version = answer.version;
        curves = answer.curves;
        tell(answer);
        if (answer.metrics.join() !== metrics.join()) {
          metrics = answer.metrics;
          fillChoices();
          arrange();
        }
        if (!metrics.length) {
          grid.replaceChildren(h("p", { class: "quiet" }, "No report yet; the first comes after the first update."));
          return;
        }
        grid.querySelector("p.quiet")?.remove();
        redraw();
      }
      return { look: look, end: () => (document.removeEventListener("slipstream-theme", redraw), charts.forEach(({ chart }) => chart.destroy())) };
    }

    function replaysTab(holder) {
      let heads = "";
      let current = null;
      let player = null;
      const stage = h("div", {}, h("p", { class: "quiet" }, "Loading …"));
      const list = h("ol", { class: "card episodes", "aria-label": "Recorded episodes, newest first" });
      holder.append(h("div", { class: "replays" }, stage, list));
      const ready = script(`/scenes/${encodeURIComponent(run.kind)}.js`);

      async function open(index, autoplay) {
        const episode = await ask(`/api/runs/${id}/episodes/${index}`);
        await ready;
        if (player) player.destroy();
        current = index;
        const element = h("div", { "data-episode": index });
        stage.replaceChildren(element, h("p", { class: "quiet small" }, `Episode ${index}, evaluated at ${whole(episode.timesteps_total)} steps. Space plays and pauses, ← → step (with Shift ten), ↑ ↓ change the speed.`));
        player = S.player(element, { kind: run.kind, config: run.world, episode: episode, autoplay: autoplay });
        list.querySelectorAll("button").forEach((button) => button.setAttribute("aria-pressed", String(Number(button.dataset.index) === index)));
      }

      return {
        look: async () => {
          const { episodes } = await ask(`/api/runs/${id}/episodes`);
          const text = JSON.stringify(episodes);
          if (text === heads) return;
          heads = text;
          if (!episodes.length) {
            stage.replaceChildren(h("p", { class: "quiet" }, "This run has recorded no episode: they are recorded when it evaluates (log.frames_every), in worlds that can be drawn."));
            return;
          }
          list.replaceChildren(...episodes.map((head) => h("li", {}, h("button", { type: "button", "data-index": head.index, "aria-pressed": String(head.index === current), onclick: () => open(head.index, true) },
            h("span", {}, `Episode ${head.index}`), h("span", { class: "quiet small" }, `${S.shortNumber(head.timesteps_total)} steps`)))));
          if (current === null) await open(episodes[0].index, true);
        },
        end: () => player && player.destroy(),
      };
    }

    function logTab(holder) {
      const events = h("div", {});
      const log = h("pre", { class: "card pad", tabindex: "0", "aria-label": "Log" });
      holder.append(h("div", { class: "two" }, h("section", {}, h("h2", {}, "Events"), events), h("section", {}, h("h2", {}, "Log"), log)));
      let before = null;
      return {
        look: async () => {
          const now = await ask(`/api/runs/${id}`);
          if (now.version === before) return;
          before = now.version;
          tell(now);
          log.textContent = now.log.join("\n") || "nothing yet";
          const hidden = ["event", "timesteps_total", "time"];
          const words = (event) => Object.entries(event).filter(([key]) => !hidden.includes(key)).slice(0, 6).map(([key, value]) => `${key} ${typeof value === "number" ? S.number(value) : typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
          events.replaceChildren(table([
            { title: "Steps", n: true, cell: (event) => whole(event.timesteps_total) },
            { title: "Event", cell: (event) => String(event.event) },
            { title: "", class: "wrap", cell: words },
          ], now.events.slice(-100).reverse()));
        },
      };
    }

    function aboutTab(holder) {
      const { metadata } = run;
      const sessions = metadata.sessions || [];
      holder.append(
        h("h2", {}, "Sessions"),
        table([
          { title: "Started", cell: (session) => when(session.started_at) },
          { title: "From step", n: true, cell: (session) => whole(session.timesteps_at_start) },
          { title: "To step", n: true, cell: (session) => whole(session.timesteps_at_end) },
          { title: "Time", n: true, cell: (session) => duration(session.wall_time_s) },
          { title: "Ended by", class: "wrap span", cell: (session) => session.outcome || "–" },
          { title: "Command", class: "wrap span", cell: (session) => (session.command_line || []).map((word) => word.split("/").pop()).join(" ") },
        ], sessions, "cards"),
        h("div", { class: "two" },
          h("section", {}, h("h2", {}, "World"), h("pre", { class: "card pad", tabindex: "0" }, JSON.stringify(run.world, null, 2))),
          h("section", {}, h("h2", {}, "Where it ran"), h("pre", { class: "card pad", tabindex: "0" }, JSON.stringify({ ...metadata, sessions: undefined }, null, 2)))),
      );
      return { look: async () => {} };
    }
  }

  /* A running mean that forgets; gaps stay gaps, and the beginning is not pulled towards zero. */
  function smoothed(values, part) {
    let [sum, weight] = [0, 0];
    return values.map((value) => {
      if (value === null || !Number.isFinite(value)) return value;
      sum = part * sum + (1 - part) * value;
      weight = part * weight + (1 - part);
      return sum / weight;
    });
  }

  const scripts = new Map();
  function script(source) {
    if (!scripts.has(source)) {
      scripts.set(source, new Promise((resolve) => document.head.append(h("script", { src: source, onload: resolve, onerror: resolve }))));
    }
    return scripts.get(source);
  }

  // --- comparison ---

  function compareView(search) {
    document.title = "Compare · Slipstream";
    const ids = search.getAll("run");
    let metric = search.get("metric") || keep.get("compare.metric", "eval/return_mean");
    let before = "";
    let charts = [];
    let names = null;
    const body = h("div", {});
    const pick = h("select", { "aria-label": "Metric", onchange: () => { metric = pick.value; keep.set("compare.metric", metric); before = ""; look(); } });

    if (ids.length < 2) {
      return follow(async () => {
        const { runs } = await ask("/api/runs");
        const sets = {};
        runs.forEach((run) => (sets[run.scenario] ||= []).push(run));
        const some = Object.entries(sets).filter(([, members]) => members.length > 1);
        swap(main, h("h1", {}, "Compare"), h("p", {}, "Choose runs in the list of ", h("a", { href: "#/" }, "runs"), ", or all runs of one scenario:"),
          some.length ? h("ul", {}, some.map(([name, members]) => h("li", {}, h("a", { href: `#/compare?${query(members.slice(0, 64).map((run) => ["run", run.id]))}` }, name), ` (${members.length} runs: ${[...new Set(members.map((run) => run.algo))].join(", ")})`))) : h("p", { class: "quiet" }, "No scenario has two runs yet."));
      }, 10 * LIST_MS);
    }

    async function look() {
      if (!names) {
        const all = await Promise.all(ids.slice(0, 3).map((id) => ask(`/api/runs/${id}`)));
        names = [...new Set(all.flatMap((run) => run.metrics))].filter((key) => key.includes("/")).sort();
        if (!names.includes(metric)) metric = names.includes("eval/return_mean") ? "eval/return_mean" : "env/return_mean";
        pick.replaceChildren(...names.map((key) => h("option", { value: key, selected: key === metric }, key)));
        main.replaceChildren(h("h1", {}, "Compare"), h("div", { class: "bar" }, pick, h("span", { class: "quiet" }, `${ids.length} runs`)), body);
      }
      let answer;
      try {
        answer = await ask(`/api/compare?${query([["metric", metric], ["seen", before], ...ids.map((id) => ["run", id])])}`);
      } catch (error) {
        if (trouble.hidden) body.replaceChildren(h("p", {}, error.message));
        before = "";
        return;
      }
      if (!answer) return;
      before = answer.mark;
      charts.forEach((chart) => chart.destroy());
      charts = [];
      body.replaceChildren(...answer.curves.map((task) => taskSection(task, answer.tasks[task.name])),
        answer.warnings.length ? h("section", {}, h("h2", {}, "Before you believe it"), h("ul", { class: "warnings" }, answer.warnings.map((words) => h("li", {}, words)))) : "",
        h("p", { class: "quiet small" }, answer.intervals));
    }

    function taskSection(task, figures) {
      const color = (group) => task.bands.findIndex((band) => band.name === group);
      const holder = h("div", {});
      const section = h("section", {}, h("h2", {}, task.name), h("div", { class: "charts one" }, holder));
      const draw = () => {
        const theme = S.theme();
        const lines = task.runs.map((run) => ({ name: run.name, steps: run.steps, values: run.values, color: S.color(color(run.group), theme), faint: true }));
        const middle = task.bands.map((band, i) => ({ name: `${band.name} (${task.runs.filter((run) => run.group === band.name).length})`, steps: band.steps, values: band.middle, low: band.low, high: band.high, color: S.color(i, theme) }));
        return [...lines, ...middle];
      };
      requestAnimationFrame(() => charts.push(S.chart(holder, { title: `${metric}: IQM over seeds with its 95 % interval, and every run`, series: draw(), height: 320 })));
      const groups = h("section", {}, table([
        { title: "Group", cell: (group) => swatch(color(group.group), group.group) },
        { title: "Runs", n: true, cell: (group) => String(group.runs.length) },
        { title: "IQM [95 %]", n: true, cell: (group) => interval(group.iqm) },
        { title: "Mean [95 %]", n: true, cell: (group) => interval(group.mean) },
        { title: "Median [95 %]", n: true, cell: (group) => interval(group.median) },
      ], [...figures.groups].sort((a, b) => b.iqm.estimate - a.iqm.estimate)));
      const better = figures.improvement.length ? h("section", {}, table([
        { title: "Chance that a run of", cell: (pair) => swatch(color(pair.first), pair.first) },
        { title: "beats one of", cell: (pair) => swatch(color(pair.second), pair.second) },
        { title: "[95 %]", n: true, cell: (pair) => interval(pair.chance, 3) },
      ], figures.improvement)) : "";
      section.append(h("div", { class: better ? "two uneven" : "" }, groups, better));
      return section;
    }
    function swatch(i, words) {
      const mark = h("i", {});
      mark.style.cssText = `display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:8px;vertical-align:-1px;background:${S.color(Math.max(0, i), S.theme())}`;
      return h("span", {}, mark, words);
    }
    const redraw = () => ((before = ""), look());
    document.addEventListener("slipstream-theme", redraw);
    const view = follow(look, 2 * LIST_MS);
    view.atEnd(() => (document.removeEventListener("slipstream-theme", redraw), charts.forEach((chart) => chart.destroy())));
    return view;
  }

  // --- leaderboard ---

  function leaderboardView() {
    document.title = "Leaderboard · Slipstream";
    let before = "";
    return follow(async () => {
      const { scenarios } = await ask("/api/leaderboard");
      const text = JSON.stringify(scenarios);
      if (text === before) return;
      before = text;
      swap(main, h("h1", {}, "Leaderboard"), h("p", { class: "quiet" }, "Runs by their last evaluation. A share of episodes has Wilson's 95 % interval; an algorithm with several seeds the bootstrap interval of its IQM."),
        ...(scenarios.length ? scenarios.map(board) : [h("p", {}, "No run has been evaluated yet.")]));
    }, 2 * LIST_MS);

    function board(scenario) {
      const share = scenario.share ? scenario.share.replace(/^eval\//, "").replace(/_(mean|fraction)$/, "") : null;
      const ranks = new Map(scenario.runs.map((run, i) => [run.id, i + 1]));
      return h("section", {}, h("h2", {}, scenario.scenario),
        table([
          { title: "Run", class: "name", cell: (run) => h("span", {}, h("span", { class: "rank" }, String(ranks.get(run.id))), h("a", { href: `#/run/${run.id}` }, run.name)) },
          { title: "Algorithm", cell: (run) => run.algo },
          { title: "Seed", n: true, cell: (run) => String(run.seed ?? "–") },
          { title: "Return", n: true, cell: (run) => S.number(run.evaluation["eval/return_mean"]) },
          ...(share ? [{ title: `${share} [95 %]`, n: true, class: "span", cell: (run) => (run.share ? h("span", {}, whisker(run.share), interval(run.share, 3)) : "–") }] : []),
          { title: "Episodes", n: true, cell: (run) => whole(run.evaluation["eval/episodes"]) },
          { title: "Steps", n: true, cell: (run) => whole(run.steps) },
          { title: "State", cell: (run) => badge(run.state) },
        ], scenario.runs, "cards"),
        scenario.groups.some((group) => group.runs > 1) ? h("p", { class: "small" }, "IQM over seeds: " + scenario.groups.map((group) => `${group.algo} ${interval(group.iqm)} (${group.runs})`).join(" · ")) : "");
    }

    /* A share and its interval on a line from 0 to 1. */
    function whisker(of) {
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("class", "whisker");
      svg.setAttribute("viewBox", "0 0 120 14");
      svg.setAttribute("aria-hidden", "true");
      const add = (tag, attributes) => {
        const part = document.createElementNS("http://www.w3.org/2000/svg", tag);
        for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
        svg.append(part);
      };
      const x = (value) => 4 + 112 * value;
      add("line", { x1: x(0), x2: x(1), y1: 7, y2: 7, stroke: "var(--line)" });
      add("line", { x1: x(of.low), x2: x(of.high), y1: 7, y2: 7, stroke: "var(--accent)", "stroke-width": 3 });
      add("circle", { cx: x(of.estimate), cy: 7, r: 4, fill: "var(--accent)" });
      return svg;
    }
  }

  // --- federations ---

  function federationsView() {
    document.title = "Federations · Slipstream";
    return follow(async () => {
      const { federations } = await ask("/api/runs");
      swap(main, h("h1", {}, "Federations"), federations.length ? table([
        { title: "Federation", class: "name", cell: (one) => h("a", { href: `#/federations/${one.id}` }, one.name) },
        { title: "Last round", n: true, cell: (one) => String(one.rounds ?? "–") },
        { title: "Folder", class: "wrap", cell: (one) => one.path },
      ], federations, "cards") : h("p", { class: "quiet" }, "There are none in the folders shown. slipstream federate SCENARIO starts one; slipstream view FOLDER shows it."));
    }, LIST_MS);
  }

  function federationView(id) {
    document.title = "Federation · Slipstream";
    const FIGURES = [["participation", "Part of the clients that took part"], ["drift", "How far the aggregate moved"], ["variance", "Variance among the clients"], ["duration_s", "Seconds per round"]];
    let charts = null;
    let before = "";
    const body = h("div", {});
    const view = follow(async () => {
      const answer = await ask(`/api/federations/${id}`);
      const text = JSON.stringify(answer);
      if (text === before) return;
      before = text;
      if (!charts) {
        const grid = h("div", { class: "charts" });
        main.replaceChildren(h("h1", {}, answer.name), h("p", { class: "path" }, answer.path), grid, h("h2", {}, "Rounds"), body);
        charts = FIGURES.map(([key, title]) => {
          const element = h("section", {});
          grid.append(element);
          return [key, S.chart(element, { title: title, series: [], height: 150 })];
        });
      }
      const steps = answer.rounds.map((round) => round.round);
      charts.forEach(([key, chart]) => chart.update([{ name: key, steps: steps, values: answer.rounds.map((round) => round[key] ?? null) }]));
      const clients = [...new Set(answer.rounds.flatMap((round) => round.clients.map((seat) => seat.client)))].sort();
      const list = (names) => (names && names.length ? names.map((one) => (typeof one === "string" ? one : one.client)).join(", ") : "–");
      const refused = (round) => Object.entries(round.refused || {}).map(([kind, count]) => `${count} ${kind}`).join(", ") || "–";
      body.replaceChildren(table([
        { title: "Round", n: true, cell: (round) => String(round.round) },
        { title: "State", cell: (round) => h("span", { title: round.reason || null }, badge(round.state)) },
        { title: "Shares", cell: (round) => shares(round, clients) },
        { title: "Clients", n: true, cell: (round) => String(round.clients.length) },
        { title: "Rule", cell: (round) => round.used || "–" },
        { title: "Drift", n: true, cell: (round) => S.number(round.drift) },
        { title: "Variance", n: true, cell: (round) => S.number(round.variance) },
        { title: "Refused", class: "wrap", cell: refused },
        { title: "Quarantine", class: "wrap", cell: (round) => list(round.quarantine) },
        { title: "Missing", class: "wrap", cell: (round) => list(round.dropouts) },
        { title: "Seconds", n: true, cell: (round) => S.number(round.duration_s) },
      ], [...answer.rounds].reverse().slice(0, 200), "cards"));
    }, LIST_MS);
    view.atEnd(() => charts && charts.forEach(([, chart]) => chart.destroy()));
    return view;

    function shares(round, clients) {
      const bar = h("span", { class: "share", role: "img", "aria-label": Object.entries(round.shares || {}).map(([client, part]) => `${client} ${Math.round(100 * part)} %`).join(", ") || "none" });
      for (const [client, part] of Object.entries(round.shares || {})) {
        const piece = h("span", { title: `${client}: ${(100 * part).toFixed(1)} %` });
        piece.style.width = `${100 * part}%`;
        piece.style.background = S.color(clients.indexOf(client), S.theme());
        bar.append(piece);
      }
      return bar;
    }
  }

  // --- begin ---

  applyTheme();
  window.addEventListener("hashchange", () => {
    route();
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  route();
})(window.Slipstream);
