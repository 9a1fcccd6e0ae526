/* Opens the run a link leads to, and gives every run its player: its episodes stand in the page as JSON. */
"use strict";
(function (S) {
  // A link to a run that is folded up opens it.
  const unfold = () => {
    const run = location.hash && document.getElementById(location.hash.slice(1));
    if (run) run.open = true;
  };
  window.addEventListener("hashchange", unfold);
  unfold();

  document.querySelectorAll(".replay").forEach((place) => {
    const what = JSON.parse(document.getElementById(place.dataset.from).textContent);
    const pick = document.createElement("select");
    pick.setAttribute("aria-label", "Episode");
    what.episodes.forEach((episode, k) => {
      const option = document.createElement("option");
      option.value = String(k);
      option.textContent = `episode ${episode.index}, at ${episode.timesteps_total.toLocaleString("en")} steps`;
      pick.append(option);
    });
    const screen = document.createElement("div");
    place.replaceChildren(pick, screen);
    let player = null;
    const show = () => {
      if (player) player.destroy();
      player = S.player(screen, { kind: what.kind, config: what.config, episode: what.episodes[Number(pick.value)] });
    };
    pick.addEventListener("change", show);
    show();
  });
})(window.Slipstream || {});
