/* The page: colours, the list of runs, and which view an address leads to. */
"use strict";
(function (S) {
  const { main, LIST_MS, h, ask, query, whole, part, badge, when, table, swap, keep, follow } = S.page;

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

  function route() {
    shown.stop();
    const [path, search] = location.hash.replace(/^#/, "").split("?");
    const [first, id, tab] = path.split("/").filter(Boolean);
    document.querySelectorAll(".top nav a").forEach((link) => {
      const current = link.dataset.view === (S.views[first] && first !== "run" ? first : "runs");
      if (current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    main.replaceChildren(h("p", { class: "quiet" }, "Loading …"));
    shown = (S.views[first] || runsView)(id, tab, new URLSearchParams(search));
  }

  // --- all runs ---

  const picked = new Set();

  function runsView() {
    document.title = "Runs · Slipstream";
    let wanted = []; // words that all must be there
    let latest = null;
    const holder = h("div", {});
    const search = h("input", { type: "search", class: "grow", placeholder: "Filter by name, scenario, algorithm, seed", "aria-label": "Filter runs", oninput: () => { wanted = search.value.toLowerCase().split(" ").filter(Boolean); fill(); } });
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
      const words = (run) => `${run.name} ${run.scenario} ${run.algo} seed ${run.seed} ${run.state} ${tried(run)}`.toLowerCase();
      const runs = latest.runs.filter((run) => wanted.every((word) => words(run).includes(word)));
      count.textContent = `${runs.length} of ${latest.runs.length}`;
      swap(holder, runs.length ? table([
        { title: "Run", class: "name", cell: (run) => h("span", {}, h("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, checked: picked.has(run.id), onchange: (event) => pick(run.id, event.target.checked) }), " ", h("a", { href: `#/run/${run.id}` }, run.name), tried(run) ? h("span", { class: "quiet small values" }, tried(run)) : "") },
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

    /* The values that a trial of a sweep had. */
    function tried(run) {
      return S.values(run.origin.trial);
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
