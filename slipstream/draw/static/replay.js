/* Opens the folded part that a link leads to, and starts every player: its episodes are in the page as JSON. */
"use strict";
(function (S) {
  // A link to a folded part opens it.
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
    pick.hidden = what.episodes.length < 2;
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
