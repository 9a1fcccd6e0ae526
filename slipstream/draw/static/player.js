/* Plays recorded episodes on a canvas. Classic script, no imports: the web page links it, a report inlines it.

   Order of scripts: player.js, then the scene.js of each world, then whatever uses them. One global, Slipstream.

   Slipstream.player(element, {kind, config, episode, autoplay}) fills the element and returns {play, pause, seek, destroy}.
     kind      world.kind of the run
     config    the `world` block of RUN/config.json
     episode   one file of RUN/frames: {index, timesteps_total, fields, agents, tick_seconds, states[T][A][F], backdrop}
     autoplay  begin at once (never where the reader prefers reduced motion)

   Slipstream.scenes[kind] = {draw, times, pace, aspect}: what is particular to a world, in slipstream/worlds/NAME/scene.js.
     draw(ctx, size, episode, config, t, theme)  one moment; t is a place in the states, 2.5 is half way between 2 and 3;
                                                 size {width, height} in CSS pixels; theme "light" or "dark"
     times(episode)                              seconds of every state; without it: index times tick_seconds
     pace                                        seconds of the world that pass in one second at speed 1; without it: 1
     aspect(episode, config)                     height over width; without it: 0.66
   A kind without a scene is shown as numbers, one row per agent. Looks: player.css. */
"use strict";
var Slipstream = window.Slipstream || {};
window.Slipstream = Slipstream;

(function (S) {
  S.scenes = S.scenes || {};
  // Told apart by people who do not see all colours (Okabe and Ito); the dark ones are lighter, for contrast.
  S.colors = {
    light: ["#0072B2", "#D55E00", "#009E73", "#B0508C", "#2B8CC4", "#B87700", "#8C564B", "#4D4D4D"],
    dark: ["#4FA8DC", "#F0813A", "#2FBF95", "#DD8FBB", "#8CCBF2", "#F0B429", "#C08A7E", "#B8BEC6"],
  };
  S.color = (i, theme) => S.colors[theme][i % S.colors[theme].length];

  S.theme = function () {
    const chosen = document.documentElement.dataset.theme;
    if (chosen === "light" || chosen === "dark") return chosen;
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };

  // --- what scenes need ---

  S.field = (episode, name) => episode.fields.indexOf(name);

  /* The value of a field at t, between two states where it is in between; `turn` is a whole turn where it is an angle. */
  S.value = function (episode, t, agent, column, turn) {
    const i = Math.min(Math.floor(t), episode.states.length - 1);
    const a = episode.states[i][agent][column];
    const next = episode.states[Math.min(i + 1, episode.states.length - 1)][agent][column];
    if (a === null || next === null) return a === null ? NaN : a;
    let step = next - a;
    if (turn) step -= turn * Math.round(step / turn);
    return a + (t - i) * step;
  };

  /* What stands still, as one byte per cell, 1 where it is occupied; row by row from the lowest. */
  S.cells = function (backdrop) {
    const cells = new Uint8Array(backdrop.rows * backdrop.columns);
    let at = 0;
    backdrop.lengths.forEach((length, k) => {
      if (k % 2) cells.fill(1, at, at + length);
      at += length;
    });
    return cells;
  };

  S.roundLength = function (most) {
    const power = Math.pow(10, Math.floor(Math.log10(most)));
    return power * [5, 2, 1].find((step) => step * power <= most * (1 + 1e-9));
  };

  S.scaleBar = function (ctx, size, scale, unit, color) {
    const length = S.roundLength((0.18 * size.width) / scale);
    const y = size.height - 14;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = color;
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    ctx.moveTo(12, y - 5);
    ctx.lineTo(12, y);
    ctx.lineTo(12 + length * scale, y);
    ctx.lineTo(12 + length * scale, y - 5);
    ctx.stroke();
    S.text(ctx, `${length} ${unit}`, 20 + length * scale, y - 2, { color: color, points: 11 });
    ctx.restore();
  };

  S.text = function (ctx, words, x, y, how) {
    ctx.font = `${how.bold ? "600 " : ""}${how.points || 12}px system-ui, sans-serif`;
    ctx.textAlign = how.align || "left";
    ctx.textBaseline = "middle";
    ctx.fillStyle = how.color;
    ctx.fillText(words, x, y);
  };

  S.clock = function (seconds) {
    const whole = Math.floor(seconds + 1e-6);
    return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
  };

  // --- worlds without a scene: their numbers ---

  S.standIn = {
    pace: 1,
    aspect: (episode) => Math.min(1, 0.12 + 0.07 * Math.min(episode.fields.length, 12)),
    times: (episode) => episode.states.map((_, i) => i / 5),
    draw: function (ctx, size, episode, config, t, theme) {
      const ink = theme === "dark" ? "#E8EBEF" : "#1C2127";
      const quiet = theme === "dark" ? "#98A2B0" : "#5C6672";
      const state = episode.states[Math.floor(t)];
      ctx.fillStyle = theme === "dark" ? "#171C22" : "#FFFFFF";
      ctx.fillRect(0, 0, size.width, size.height);
      const fields = episode.fields.slice(0, 12);
      const agents = episode.agents.slice(0, Math.max(1, Math.floor((size.width - 150) / 90)));
      const row = (size.height - 20) / (fields.length + 1);
      agents.forEach((name, a) => {
        S.text(ctx, name, 150 + 90 * a + 70, 10 + row / 2, { color: S.color(a, theme), align: "right", bold: true });
      });
      fields.forEach((name, f) => {
        const y = 10 + row * (f + 1.5);
        S.text(ctx, name, 14, y, { color: quiet });
        agents.forEach((_, a) => {
          const value = state[a][f];
          const words = value === null ? "–" : String(Number(value.toPrecision(5)));
          S.text(ctx, words, 150 + 90 * a + 70, y, { color: ink, align: "right" });
        });
      });
    },
  };

  // --- the player ---

  const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  S.player = function (element, what) {
    const { kind, config, episode } = what;
    const scene = S.scenes[kind] || S.standIn;
    const count = episode.states.length;
    if (!count) {
      element.replaceChildren("This episode has no states.");
      return { play() {}, pause() {}, seek() {}, destroy: () => element.replaceChildren() };
    }
    const times = scene.times
      ? scene.times(episode)
      : episode.states.map((_, i) => i * episode.tick_seconds);
    const clock = times[count - 1] < 60 ? (passed) => `${passed.toFixed(1)} s` : S.clock; // a race may last a second
    const pace = scene.pace || 1;
    const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    let place = 0; // in the states
    let speed = 1;
    let playing = false;
    let last = 0; // when the last picture was drawn, ms
    let wanted = 0; // id of the next picture

    const canvas = make("canvas", { role: "img", tabindex: "0" });
    const button = make("button", { type: "button", class: "player-play" });
    const scrub = make("input", {
      type: "range", min: "0", max: String(count - 1), step: "any", value: "0", "aria-label": "Place in the episode",
    });
    const pick = make("select", { "aria-label": "Speed" });
    SPEEDS.forEach((s) => pick.append(make("option", { value: String(s) }, `${s}×`)));
    pick.value = "1";
    const told = make("output", { class: "player-time" });
    const bar = make("div", { class: "player-controls" }, button, scrub, told, pick);
    element.classList.add("player");
    element.replaceChildren(canvas, bar);

    const seconds = (t) => {
      const i = Math.min(Math.floor(t), count - 1);
      const next = Math.min(i + 1, count - 1);
      return times[i] + (t - i) * (times[next] - times[i]);
    };

    function advance(by) {
      // The place whose time is `by` seconds of the world later.
      let left = by;
      while (left > 0 && place < count - 1) {
        const i = Math.floor(place);
        const length = Math.max(times[i + 1] - times[i], 1e-6);
        const rest = (i + 1 - place) * length;
        if (rest > left) {
          place += left / length;
          return;
        }
        left -= rest;
        place = i + 1;
      }
    }

    function draw() {
      const size = { width: canvas.clientWidth, height: canvas.clientHeight };
      if (!size.width || !size.height) return;
      const dots = window.devicePixelRatio || 1;
      const wide = Math.round(size.width * dots);
      const tall = Math.round(size.height * dots);
      if (canvas.width !== wide || canvas.height !== tall) {
        canvas.width = wide;
        canvas.height = tall;
      }
      const ctx = canvas.getContext("2d");
      ctx.setTransform(dots, 0, 0, dots, 0, 0);
      ctx.clearRect(0, 0, size.width, size.height);
      ctx.save();
      scene.draw(ctx, size, episode, config, place, S.theme());
      ctx.restore();
      scrub.value = String(place);
      const now = scene.pace === undefined && !scene.times && !episode.tick_seconds
        ? `${Math.floor(place)} / ${count - 1}`
        : `${clock(seconds(place))} / ${clock(times[count - 1])}`;
      if (told.textContent !== now) {
        told.textContent = now;
        scrub.setAttribute("aria-valuetext", `state ${Math.floor(place)} of ${count - 1}, ${now}`);
      }
    }

    function tick(now) {
      if (!element.isConnected) return;
      advance((Math.min(now - last, 250) / 1000) * speed * pace);
      last = now;
      if (place >= count - 1) pause();
      draw();
      if (playing) wanted = requestAnimationFrame(tick);
    }

    function show() {
      button.textContent = playing ? "❚❚" : "▶";
      button.setAttribute("aria-label", playing ? "Pause" : "Play");
      element.dataset.playing = String(playing);
    }

    function play() {
      if (playing) return;
      if (place >= count - 1) place = 0;
      playing = true;
      last = performance.now();
      wanted = requestAnimationFrame(tick);
      show();
    }

    function pause() {
      playing = false;
      cancelAnimationFrame(wanted);
      show();
    }

    function seek(t) {
      place = Math.max(0, Math.min(count - 1, t));
      draw();
    }

    function setSpeed(k) {
      speed = SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, k))];
      pick.value = String(speed);
    }

    function onKey(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target === pick) return;
      const by = event.shiftKey ? 10 : 1;
      const does = {
        " ": () => event.target !== button && (playing ? pause() : play()),
        ArrowRight: () => (pause(), seek(Math.floor(place + 1e-9) + by)),
        ArrowLeft: () => (pause(), seek(Math.ceil(place - 1e-9) - by)),
        ArrowUp: () => setSpeed(SPEEDS.indexOf(speed) + 1),
        ArrowDown: () => setSpeed(SPEEDS.indexOf(speed) - 1),
        Home: () => seek(0),
        End: () => seek(count - 1),
      }[event.key];
      if (!does) return;
      if (event.key !== " " || event.target !== button) event.preventDefault();
      does();
    }

    function fit() {
      const aspect = scene.aspect ? scene.aspect(episode, config) : 0.66;
      const height = Math.max(160, Math.min(canvas.clientWidth * aspect, window.innerHeight * 0.62));
      canvas.style.height = `${Math.round(height)}px`;
      draw();
    }

    button.addEventListener("click", () => (playing ? pause() : play()));
    scrub.addEventListener("input", () => (pause(), seek(Number(scrub.value))));
    pick.addEventListener("change", () => setSpeed(SPEEDS.indexOf(Number(pick.value))));
    element.addEventListener("keydown", onKey);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", draw);
    document.addEventListener("slipstream-theme", draw);
    const watch = new ResizeObserver(fit);
    watch.observe(element);
    canvas.setAttribute("aria-label", `Episode ${episode.index} with ${episode.agents.slice(0, 8).join(", ")}. ` +
      "Space plays and pauses, left and right arrows step, up and down arrows change the speed.");
    show();
    fit();
    if (what.autoplay && !calm) play();

    return {
      play: play,
      pause: pause,
      seek: seek,
      destroy: function () {
        pause();
        watch.disconnect();
        element.removeEventListener("keydown", onKey);
        dark.removeEventListener("change", draw);
        document.removeEventListener("slipstream-theme", draw);
        element.replaceChildren();
      },
    };
  };
})(Slipstream);
