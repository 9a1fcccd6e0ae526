/* Several runs: comparison, leaderboard, federations. */
"use strict";
(function (S) {
  const { main, trouble, LIST_MS, h, ask, query, whole, badge, interval, table, swap, keep, follow, swatch } = S.page;

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
      body.replaceChildren(...answer.curves.map((task) => taskSection(task, answer.tasks[task.name], answer.better, answer.share)),
        answer.warnings.length ? h("section", {}, h("h2", {}, "Warnings"), h("ul", { class: "warnings" }, answer.warnings.map((words) => h("li", {}, words)))) : "",
        h("p", { class: "quiet small" }, answer.intervals));
    }

    function taskSection(task, figures, better, share) {
      const color = (group) => task.bands.findIndex((band) => band.name === group);
      const holder = h("div", {});
      const section = h("section", {}, h("h2", {}, task.name), h("div", { class: "charts one" }, holder));
      const draw = () => {
        const theme = S.theme();
        const lines = task.runs.map((run) => ({ name: run.name, steps: run.steps, values: run.values, color: S.color(color(run.group), theme), faint: true }));
        const middle = task.bands.map((band, i) => ({ name: `${band.name} (${task.runs.filter((run) => run.group === band.name).length})`, steps: band.steps, values: band.middle, low: band.low, high: band.high, dashedFrom: band.whole_until, color: S.color(i, theme) }));
        return [...lines, ...middle];
      };
      requestAnimationFrame(() => charts.push(S.chart(holder, { title: `${metric}: IQM over seeds with its 95 % interval, and every run`, series: draw(), height: 320, share: share })));
      if (task.bands.some((band) => band.steps.length && band.steps[band.steps.length - 1] > band.whole_until)) section.append(h("p", { class: "quiet small" }, "Dashed: some runs of the group have ended; their last value counts."));
      const groups = h("section", {}, table([
        { title: "Group", class: "name", cell: (group) => swatch(color(group.group), group.group) },
        { title: "Runs", n: true, cell: (group) => String(group.runs.length) },
        { title: "IQM [95 %]", n: true, cell: (group) => interval(group.iqm) },
        { title: "Mean [95 %]", n: true, cell: (group) => interval(group.mean) },
        { title: "Median [95 %]", n: true, cell: (group) => interval(group.median) },
      ], [...figures.groups].sort((a, b) => ({ higher: b.iqm.estimate - a.iqm.estimate, lower: a.iqm.estimate - b.iqm.estimate })[better] || 0), "cards"),
        better ? h("p", { class: "quiet small" }, `Of ${metric}, ${better} is better.`) : "");
      const beats = figures.improvement.length ? h("section", {}, table([
        { title: "Chance that a run of", class: "wrap span", cell: (pair) => swatch(color(pair.first), pair.first) },
        { title: "beats one of", class: "wrap span", cell: (pair) => swatch(color(pair.second), pair.second) },
        { title: "[95 %]", n: true, cell: (pair) => interval(pair.chance, 3) },
      ], figures.improvement, "cards")) : "";
      section.append(h("div", { class: beats ? "two uneven" : "under" }, groups, beats));
      return section;
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
      swap(main, h("h1", {}, "Leaderboard"), h("p", { class: "quiet" }, "By the return over fresh episodes that a run's policy and the scripts played when it ended, with 95 % intervals over them; equal figures share a rank. What was not judged is shown below with the episodes of its last evaluation, on which a run may have stopped because they went well. A federation is one entry."),
        ...(scenarios.length ? scenarios.map(board) : [h("p", {}, "No run has been evaluated yet.")]));
    }, 2 * LIST_MS);

    function board(scenario) {
      const share = scenario.share ? scenario.share.replace(/^eval\//, "").replace(/_(mean|fraction)$/, "") : null;
      const page = (entry) => (entry.kind === "federation" ? `#/federations/${entry.id}` : `#/run/${entry.id}`);
      const of = (entry) => (entry.source === "judged" ? `${whole(entry.episodes)} fresh` : `${whole(entry.episodes)} of its last evaluation`);
      return h("section", {}, h("h2", {}, scenario.scenario),
        table([
          { title: "Run", class: "name", cell: (entry) => h("span", {}, h("span", { class: "rank" }, entry.kind === "script" ? "" : String(entry.rank ?? "–")), entry.id ? h("a", { href: page(entry) }, entry.name) : entry.name, entry.note ? h("span", { class: "quiet small values" }, entry.note) : "") },
          { title: "Algorithm", cell: (entry) => (entry.kind === "federation" ? `${entry.algo}, federation` : entry.algo) },
          { title: "Seed", n: true, cell: (entry) => String(entry.seed ?? "–") },
          { title: "Return [95 %]", n: true, class: "span", cell: (entry) => interval(entry.value) },
          ...(share ? [
            { title: "", class: "line", cell: (entry) => (entry.share ? whisker(entry.share) : "") },
            { title: `${share} [95 %]`, n: true, class: "span", cell: (entry) => (entry.share ? interval(entry.share, 3) : "–") }] : []),
          { title: "Episodes", n: true, class: "span", cell: of },
          { title: "Steps", n: true, cell: (entry) => whole(entry.steps) },
          { title: "State", cell: (entry) => (entry.state ? badge(entry.state) : "–") },
        ], scenario.entries, "cards", (entry) => (entry.kind === "script" ? "script" : null)),
        scenario.note ? h("p", { class: "quiet small" }, scenario.note) : "",
        scenario.groups.length ? h("p", { class: "small" }, "IQM over seeds of the same settings: " + scenario.groups.map((group) => `${group.algo}${group.note ? ` with ${group.note}` : ""} ${interval(group.iqm)} (${group.runs} runs)`).join(" · ")) : "");
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
      if (of.low !== null) add("line", { x1: x(of.low), x2: x(of.high), y1: 7, y2: 7, stroke: "var(--accent)", "stroke-width": 3 });
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
        { title: "Rounds closed", n: true, cell: (one) => whole(one.closed) },
        { title: "Last round", cell: (one) => (one.rounds === null ? "–" : h("span", {}, `${one.rounds} `, badge(one.state))) },
        { title: "Folder", class: "wrap", cell: (one) => one.path },
      ], federations, "cards") : h("p", { class: "quiet" }, "There are none in the folders shown. slipstream federate SCENARIO starts one; slipstream view FOLDER shows it."));
    }, LIST_MS);
  }

  function federationView(id) {
    document.title = "Federation · Slipstream";
    const FIGURES = [["participation", "Share of clients that took part"], ["drift", "How far the aggregate moved"], ["variance", "Variance among the clients"], ["duration_s", "Seconds per round"]];
    let charts = null;
    let before = "";
    const body = h("div", {});
    const members = h("p", {});
    const closed = h("span", { class: "quiet small" });
    const view = follow(async () => {
      const answer = await ask(`/api/federations/${id}`);
      const text = JSON.stringify(answer);
      if (text === before) return;
      before = text;
      if (!charts) {
        const grid = h("div", { class: "charts four" });
        document.title = `${answer.name} · Slipstream`;
        main.replaceChildren(h("h1", {}, answer.name), h("p", { class: "path" }, answer.path), members, grid, h("h2", {}, "Rounds"), closed, body);
        charts = FIGURES.map(([key, title]) => {
          const element = h("section", {});
          grid.append(element);
          return [key, S.chart(element, { title: title, series: [], height: 150, share: key === "participation" })];
        });
      }
      closed.textContent = answer.closed === 1 ? "1 round closed." : `${whole(answer.closed)} rounds closed.`;
      swap(members, ...(answer.clients.length ? ["Clients: ", ...answer.clients.flatMap((one, i) => [i ? ", " : "", h("a", { href: `#/run/${one.id}` }, one.name)])] : []));
      const steps = answer.rounds.map((round) => round.round);
      const axis = steps.length ? [steps[0] - 1, steps[steps.length - 1]] : [0, 1];
      charts.forEach(([key, chart]) => chart.update([{ name: key, steps: steps, values: answer.rounds.map((round) => round[key] ?? null) }], axis));
      const clients = Object.keys(answer.names);
      const nameOf = (client) => answer.names[client] || client;
      const list = (names) => (names.length ? names.join(", ") : "–");
      const refused = (round) => Object.entries(round.refused || {}).map(([kind, count]) => `${count} ${kind}`).join(", ") || "–";
      body.replaceChildren(table([
        { title: "Round", n: true, cell: (round) => String(round.round) },
        { title: "State", class: "wrap span state", cell: (round) => h("span", {}, badge(round.state), round.why ? h("span", { class: "small values" }, round.why) : "") },
        { title: "Shares", cell: (round) => shares(round, clients, nameOf) },
        { title: "Took part", n: true, cell: (round) => String(round.clients.length) },
        { title: "Rule", cell: (round) => round.used || "–" },
        { title: "Drift", n: true, cell: (round) => S.number(round.drift) },
        { title: "Variance", n: true, cell: (round) => S.number(round.variance) },
        { title: "Refused", class: "wrap", cell: refused },
        { title: "Quarantine", class: "wrap", cell: (round) => list(round.quarantine) },
        { title: "Missing", class: "wrap", cell: (round) => list(round.missing) },
        { title: "At their end", class: "wrap", cell: (round) => list(round.finished) },
        { title: "Seconds", n: true, cell: (round) => S.number(round.duration_s) },
      ], [...answer.rounds].reverse().slice(0, 200), "cards"));
    }, LIST_MS);
    view.atEnd(() => charts && charts.forEach(([, chart]) => chart.destroy()));
    return view;

    function shares(round, clients, nameOf) {
      const bar = h("span", { class: "share", role: "img", "aria-label": Object.entries(round.shares || {}).map(([client, part]) => `${nameOf(client)} ${Math.round(100 * part)} %`).join(", ") || "none" });
      for (const [client, part] of Object.entries(round.shares || {})) {
        const piece = h("span", { title: `${nameOf(client)}: ${(100 * part).toFixed(1)} %` });
        piece.style.width = `${100 * part}%`;
        piece.style.background = S.color(clients.indexOf(client), S.theme());
        bar.append(piece);
      }
      return bar;
    }
  }

  S.views.compare = (id, tab, search) => compareView(search);
  S.views.leaderboard = leaderboardView;
  S.views.federations = (id) => (id ? federationView(id) : federationsView());
})(window.Slipstream);
