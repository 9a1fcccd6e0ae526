/* One run: its curves, replays, log, and what it is. */
"use strict";
(function (S) {
  const { main, LIVE_MS, h, ask, query, whole, part, badge, duration, when, table, keep, follow } = S.page;

  const FIRST_SHOWN = ["env/return_mean", "eval/return_mean", "eval/success_mean", "eval/clean_fraction", "env/length_mean", "train/policy_loss", "train/value_loss", "train/critic_loss", "train/entropy", "train/approx_kl", "train/explained_variance", "curriculum/phase", "perf/steps_per_s"];
  const GROUPS = { env: "Episodes in training", eval: "Evaluation", train: "Learning", perf: "Speed", replay: "Replay", collector: "Workers", fed: "Federation", stop: "Stopping", curriculum: "Curriculum", privacy: "Privacy", diag: "Diagnostics of the networks", counters: "Counters" };

  function runView(id, tab) {
    let version = null;
    let run = null;
    let body = null;
    let evaluated = null; // return of the newest evaluation
    const standing = h("div", {}); // state and progress
    return begin();

    function begin() {
      const view = follow(async () => {
        if (!run) {
          run = await ask(`/api/runs/${id}`);
          version = run.version;
          document.title = `${run.name} · Slipstream`;
          const tabs = [["curves", "Curves"], ["replays", "Replays"], ["log", "Log"], ["about", "About"]];
          const holder = h("div", {});
          main.replaceChildren(h("h1", {}, run.name), h("p", { class: "path" }, run.path), belonging(), standing,
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
      if (tab !== "curves") { // the others need the space
        const words = [run.scenario, run.algo, `seed ${run.metadata.seed ?? "–"}`, `${whole(now.steps)} of ${whole(run.timesteps)} steps`];
        standing.replaceChildren(badge(now.state), h("span", { class: "quiet" }, ` ${words.join(" · ")}`));
        return;
      }
      const facts = [
        ["State", badge(now.state)], ["Scenario", run.scenario], ["Algorithm", run.algo], ["Seed", String(run.metadata.seed ?? "–")],
        ["Steps", `${whole(now.steps)} of ${whole(run.timesteps)}`], ["Episodes", whole(last.episodes_total)],
        ["Return", S.number(last["env/return_mean"])], ["Evaluation", S.number(evaluationOf(now))],
        ["Steps per second", whole(last["perf/steps_per_s"])], now.state === "running" ? ["Time left", duration(now.seconds_left)] : ["Time", duration(last.time_total_s)],
      ];
      standing.replaceChildren(h("div", { class: "card pad" }, h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))),
        now.state === "finished" ? "" : part(now.steps, run.timesteps));
    }

    /* What the run is part of: a link to its federation, or the values that its sweep tried. */
    function belonging() {
      const { federation, trial, page } = run.origin;
      if (!federation && !trial) return "";
      return h("p", { class: "small" },
        trial ? `Trial ${trial.number} of the sweep ${trial.sweep}: ${S.values(trial) || "values unknown"}. ` : "",
        federation ? ["Client ", federation.client, " of the federation ", page ? h("a", { href: `#/federations/${page}` }, federation.name) : federation.name, "."] : "");
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
      let shares = new Set(); // metrics that go from 0 to 1
      let steps = [0, 1]; // of all charts
      let curves = {};
      const kept = keep.get(`metrics.${run.kind}`, null);
      let wanted = new Set(kept || FIRST_SHOWN);
      const grid = h("div", { class: "charts" });
      const choose = h("details", { class: "card choose" }, h("summary", {}, "Metrics"), h("input", { type: "search", placeholder: "Find a metric", "aria-label": "Find a metric", oninput: (event) => find(event.target.value) }), h("div", { class: "sets" }));
      const pick = h("select", { "aria-label": "Smoothing", onchange: () => { smooth = Number(pick.value); keep.set("smooth", smooth); version = null; again(); } },
        [[0, "no smoothing"], [0.6, "some smoothing"], [0.9, "much smoothing"]].map(([value, words]) => h("option", { value: value, selected: value === smooth }, words)));
      holder.append(h("div", { class: "bar" }, pick, h("span", { class: "quiet small" }, "Mark a stretch of a curve to see it in full; Escape shows all. The number beside a title is the last one measured; evaluations, counts and phases are not smoothed.")), choose, grid);

      const isShown = () => metrics.filter((key) => wanted.has(key));

      function fillChoices() {
        const sets = {};
        metrics.forEach((key) => (sets[key.includes("/") ? key.split("/")[0] : "counters"] ||= []).push(key));
        const toggle = (keys, on) => {
          keys.forEach((key) => (on ? wanted.add(key) : wanted.delete(key)));
          keep.set(`metrics.${run.kind}`, [...wanted]);
          version = null;
          arrange();
          look();
        };
        choose.querySelector("summary").textContent = `Metrics: ${isShown().length} of ${metrics.length} shown`;
        choose.querySelector(".sets").replaceChildren(...Object.entries(sets).map(([name, keys]) => {
          const title = GROUPS[name] || name;
          const boxes = keys.map((key) => h("input", { type: "checkbox", checked: wanted.has(key), onchange: (event) => toggle([key], event.target.checked) }));
          const all = (words, on) => h("button", { type: "button", "aria-label": `${title}: ${words}`, onclick: () => {
            const found = keys.filter((_, i) => !boxes[i].closest("label").hidden);
            keys.forEach((key, i) => found.includes(key) && (boxes[i].checked = on));
            toggle(found, on);
          } }, words);
          return h("fieldset", {}, h("legend", {}, title, " ", all("all", true), " ", all("none", false)), keys.map((key, i) => h("label", { "data-key": key }, boxes[i], h("span", {}, key))));
        }));
        find(choose.querySelector("input").value);
      }

      /* Show only the metrics whose names hold all the words. */
      function find(text) {
        const words = text.toLowerCase().split(" ").filter(Boolean);
        choose.querySelectorAll("label").forEach((label) => (label.hidden = !words.every((word) => label.dataset.key.toLowerCase().includes(word))));
        choose.querySelectorAll("fieldset").forEach((set) => (set.hidden = !set.querySelector("label:not([hidden])")));
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
            charts.set(key, { element: element, chart: S.chart(element, { title: key, series: [], share: shares.has(key), onZoom: (low, high) => zoom(low, high) }) });
          }
          const { element } = charts.get(key);
          if (grid.children[i] !== element) grid.insertBefore(element, grid.children[i] || null);
        });
        choose.querySelector("summary").textContent = `Metrics: ${order.length} of ${metrics.length} shown`;
      }
      const rank = (key) => (FIRST_SHOWN.includes(key) ? FIRST_SHOWN.indexOf(key) : 100 + metrics.indexOf(key));

      let zoomed = null;
      let zooming = false;
      let stretch = null; // [low, high] while zoomed
      async function zoom(low, high) {
        if (zooming) return; // all charts show the same steps: the others are told by us
        zooming = true;
        for (const { chart } of charts.values()) chart.zoom(low, high);
        zooming = false;
        zoomed = null;
        stretch = low === null ? null : [low, high];
        if (stretch) await magnify();
        redraw();
      }

      async function magnify() {
        const [low, high] = stretch;
        const answer = await ask(`/api/runs/${id}/window?${query([["low", low], ["high", high], ["smooth", smooth], ...isShown().map((key) => ["key", key])])}`);
        if (stretch && stretch[0] === low && stretch[1] === high) zoomed = answer.curves;
      }

      async function again() {
        await look();
        if (stretch) await magnify();
        redraw();
      }

      function redraw() {
        for (const [key, { chart, element }] of charts) {
          const curve = (zoomed && zoomed[key]) || curves[key];
          if (!curve) continue;
          element.dataset.points = String(curve.steps.length);
          const line = { name: key, steps: curve.steps, values: curve.values, color: S.color(0, S.theme()) };
          chart.update(curve.smoothed ? [{ ...line, faint: true }, { ...line, values: curve.smoothed, smoothed: true }] : [line], steps);
        }
      }
      document.addEventListener("slipstream-theme", redraw);

      async function look() {
        const seen = Object.keys(curves).length && version !== null ? [["seen", version]] : [];
        const answer = await ask(`/api/runs/${id}/curves?${query([...seen, ["smooth", smooth], ...isShown().map((key) => ["key", key]), ...(metrics.length ? [] : run.metrics.filter((key) => wanted.has(key)).map((key) => ["key", key]))])}`);
        if (!answer) return;
        version = answer.version;
        curves = answer.curves;
        shares = new Set(answer.shares);
        steps = [0, Math.max(1, answer.steps)];
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
            h("span", {}, `Episode ${head.index}`), h("span", { class: "quiet small" }, `${whole(head.timesteps_total)} steps`)))));
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
        ], sessions, "cards"),
        h("h2", {}, run.commands.length > 1 ? "Commands" : "Command"),
        ...run.commands.map((words) => command(words || "unknown")),
        h("div", { class: "two" },
          h("section", {}, h("h2", {}, "World"), h("pre", { class: "card pad", tabindex: "0" }, JSON.stringify(run.world, null, 2))),
          h("section", {}, h("h2", {}, "Where it ran"), h("pre", { class: "card pad", tabindex: "0" }, JSON.stringify({ ...metadata, sessions: undefined }, null, 2)))),
      );
      return { look: async () => {} };
    }
  }

  /* A command as it was typed, with a button that copies it. */
  function command(words) {
    const copy = h("button", { type: "button", onclick: () => navigator.clipboard.writeText(words).then(() => (copy.textContent = "Copied"), () => (copy.textContent = "Mark it and copy")) }, "Copy");
    return h("div", { class: "bar" }, h("code", { class: "card command", tabindex: "0" }, words), copy);
  }

  const scripts = new Map();
  function script(source) {
    if (!scripts.has(source)) {
      scripts.set(source, new Promise((resolve) => document.head.append(h("script", { src: source, onload: resolve, onerror: resolve }))));
    }
    return scripts.get(source);
  }

  S.views.run = (id, tab) => runView(id, tab || "curves");
})(window.Slipstream);
