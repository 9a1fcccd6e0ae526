/* Air traffic on a canvas: aircraft, where they have been, waypoints, and rings that touch where separation is lost. */
"use strict";
(function (S) {
  const SHAPE = [[0, 1], [0.16, 0.72], [0.16, 0.3], [1, -0.22], [1, -0.42], [0.16, -0.18], [0.12, -0.68], [0.4, -0.88],
    [0.4, -1.02], [0, -0.9], [-0.4, -1.02], [-0.4, -0.88], [-0.12, -0.68], [-0.16, -0.18], [-1, -0.42], [-1, -0.22],
    [-0.16, 0.3], [-0.16, 0.72]]; // seen from above, nose up, one unit from the middle to the nose
  const SHAPE_PX = 11;
  const EARTH_NM = 6371.0 / 1.852;
  const THEMES = {
    light: { ground: "#F8F9FB", grid: "#E3E7EC", words: "#2B3138", quiet: "#5C6672", lost: "#C62828", edge: "#FFFFFF", halo: "#F8F9FB" },
    dark: { ground: "#12161B", grid: "#222932", words: "#E8EBEF", quiet: "#98A2B0", lost: "#FF6B6B", edge: "#0B0E12", halo: "#12161B" },
  };
  const radians = (degrees) => (degrees * Math.PI) / 180;

  /* Both worlds as one: who flies, in which row and columns their state is, and who is to keep away from whom. */
  function crew(episode) {
    const of = (prefix, row, name) => ({
      name: name, row: row,
      lat: S.field(episode, prefix + "lat_deg"), lon: S.field(episode, prefix + "lon_deg"),
      heading: S.field(episode, prefix + "heading_deg"), present: prefix ? -1 : S.field(episode, "present"),
      goal: prefix ? null : place(episode.states[0][row], S.field(episode, "waypoint_lat_deg"), S.field(episode, "waypoint_lon_deg")),
    });
    const all = episode.agents.map((name, row) => of("", row, name));
    const own = all.length;
    for (let k = 0; S.field(episode, `intruder_${k}_lat_deg`) >= 0; k++) all.push(of(`intruder_${k}_`, 0, `I${k + 1}`));
    const pairs = [];
    for (let i = 0; i < own; i++) for (let j = i + 1; j < all.length; j++) pairs.push([i, j]);
    return { all: all, pairs: pairs };
  }

  function place(state, lat, lon) {
    return lat < 0 || state[lat] === null || state[lon] === null ? null : [state[lat], state[lon]];
  }

  const isThere = (one, state) => one.present < 0 || state[one.row][one.present] > 0;

  const separationOf = (config) => Number((config || {}).separation_nm) || 5;

  const kept = new WeakMap();
  function prepare(episode, separation) {
    if (kept.has(episode)) return kept.get(episode);
    const { all, pairs } = crew(episode);
    const states = episode.states;
    const known = all.flatMap((one) => [place(states[0][one.row], one.lat, one.lon), one.goal]).filter(Boolean);
    const lat0 = known.reduce((sum, at) => sum + at[0], 0) / known.length;
    const lon0 = known.reduce((sum, at) => sum + at[1], 0) / known.length;
    const narrow = Math.cos(radians(lat0));
    const xy = (lat, lon) => [(lon - lon0) * 60 * narrow, (lat - lat0) * 60]; // NM east and north
    const paths = all.map((one) => states.map((state) => {
      const at = place(state[one.row], one.lat, one.lon);
      return at ? xy(at[0], at[1]) : [NaN, NaN];
    }));
    const ends = known.map((at) => xy(at[0], at[1]));
    const spread = (axis) => Math.max(...ends.map((p) => p[axis])) - Math.min(...ends.map((p) => p[axis]));
    const room = 0.15 * Math.max(spread(0), spread(1), 4 * separation);
    const box = { low: [Infinity, Infinity], high: [-Infinity, -Infinity] };
    const include = (p, margin) => [0, 1].forEach((axis) => {
      if (Number.isNaN(p[axis])) return;
      box.low[axis] = Math.min(box.low[axis], p[axis] - margin);
      box.high[axis] = Math.max(box.high[axis], p[axis] + margin);
    });
    ends.forEach((p) => include(p, room));
    all.forEach((one, i) => states.forEach((state, k) => isThere(one, state) && include(paths[i][k], separation / 2)));
    const ready = { all: all, pairs: pairs, paths: paths, xy: xy, box: box };
    kept.set(episode, ready);
    return ready;
  }

  function distance(a, b) {
    const [lat1, lon1, lat2, lon2] = [a[0], a[1], b[0], b[1]].map(radians);
    const h = Math.sin((lat2 - lat1) / 2) ** 2 + Math.cos(lat1) * Math.cos(lat2) * Math.sin((lon2 - lon1) / 2) ** 2;
    return 2 * EARTH_NM * Math.asin(Math.min(1, Math.sqrt(h)));
  }

  function draw(ctx, size, episode, config, t, theme) {
    const separation = separationOf(config);
    const paint = THEMES[theme];
    const { all, pairs, paths, xy, box } = prepare(episode, separation);
    const i = Math.floor(t);
    const state = episode.states[i];
    const band = 30; // above and below the traffic, for words
    const scale = Math.min((size.width - 8) / (box.high[0] - box.low[0]), (size.height - 2 * band) / (box.high[1] - box.low[1]));
    const middle = [(box.low[0] + box.high[0]) / 2, (box.low[1] + box.high[1]) / 2];
    const px = (p) => [size.width / 2 + (p[0] - middle[0]) * scale, size.height / 2 - (p[1] - middle[1]) * scale];
    const color = (k) => (all[k].goal ? S.color(k, theme) : paint.quiet);

    ctx.fillStyle = paint.ground;
    ctx.fillRect(0, 0, size.width, size.height);
    drawGrid(ctx, size, scale, middle, px, paint.grid);

    const there = all.map((one) => isThere(one, state));
    const at = all.map((one) => [S.value(episode, t, one.row, one.lat), S.value(episode, t, one.row, one.lon, 360)]);
    const now = at.map((p) => xy(p[0], p[1]));
    let closest = Infinity;
    const lost = new Set();
    pairs.forEach(([a, b]) => {
      if (!there[a] || !there[b]) return;
      const nm = distance(at[a], at[b]);
      closest = Math.min(closest, nm);
      if (nm < separation) lost.add(a).add(b);
    });

    all.forEach((one, k) => {
      if (one.goal) drawPlan(ctx, px(paths[k][0]), px(xy(one.goal[0], one.goal[1])), color(k), paint);
      drawTrail(ctx, one, k, i);
    });
    function drawTrail(ctx, one, k, upTo) {
      ctx.strokeStyle = color(k);
      ctx.globalAlpha = 0.65;
      ctx.lineWidth = 1.75;
      ctx.lineJoin = "round";
      ctx.beginPath();
      for (let s = 0; s <= upTo && isThere(one, episode.states[s]); s++) ctx.lineTo(...px(paths[k][s]));
      if (there[k]) ctx.lineTo(...px(now[k]));
      ctx.stroke();
      ctx.globalAlpha = 1;
    }
    all.forEach((one, k) => {
      if (!there[k]) return;
      const ring = lost.has(k) ? paint.lost : color(k);
      ctx.beginPath();
      ctx.arc(...px(now[k]), (separation / 2) * scale, 0, 2 * Math.PI);
      ctx.fillStyle = ctx.strokeStyle = ring;
      ctx.globalAlpha = lost.has(k) ? 0.18 : 0.07;
      ctx.fill();
      ctx.globalAlpha = lost.has(k) ? 1 : 0.55;
      ctx.lineWidth = 1.5;
      ctx.stroke();
      ctx.globalAlpha = 1;
    });
    all.forEach((one, k) => {
      if (there[k]) drawAircraft(ctx, px(now[k]), S.value(episode, t, one.row, one.heading, 360), color(k), one.name, paint);
    });

    S.text(ctx, S.clock(t * episode.tick_seconds), 12, 16, { color: paint.words, points: 14, bold: true });
    if (closest < Infinity) {
      const isLost = closest < separation;
      const words = `${isLost ? "separation lost  " : ""}closest ${closest.toFixed(1)} NM`;
      S.text(ctx, words, size.width - 12, 16, { color: isLost ? paint.lost : paint.words, align: "right", points: 13, bold: isLost });
    }
    S.scaleBar(ctx, size, scale, "NM", paint.quiet);
    if (size.width > 420) {
      S.text(ctx, `rings touch at ${separation} NM`, size.width - 12, size.height - 16, { color: paint.quiet, align: "right", points: 11 });
    }
  }

  function drawGrid(ctx, size, scale, middle, px, color) {
    const step = scale > 4 ? 10 : 50; // NM
    const reach = Math.max(size.width, size.height) / scale;
    const base = middle.map((m) => step * Math.round(m / step));
    ctx.strokeStyle = color;
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (let k = -Math.ceil(reach / step) * step; k <= reach + step; k += step) {
      const [x, y] = px([base[0] + k, base[1] + k]);
      ctx.moveTo(x, 0);
      ctx.lineTo(x, size.height);
      ctx.moveTo(0, y);
      ctx.lineTo(size.width, y);
    }
    ctx.stroke();
  }

  function drawPlan(ctx, from, to, color, paint) {
    ctx.strokeStyle = ctx.fillStyle = color;
    ctx.globalAlpha = 0.4;
    ctx.lineWidth = 1;
    ctx.setLineDash([5, 5]);
    ctx.beginPath();
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
    ctx.beginPath();
    for (let k = 0; k < 10; k++) {
      const reach = k % 2 ? 3.4 : 8;
      ctx.lineTo(to[0] + reach * Math.sin((k * Math.PI) / 5), to[1] - reach * Math.cos((k * Math.PI) / 5));
    }
    ctx.closePath();
    ctx.fill();
    ctx.strokeStyle = paint.edge;
    ctx.lineWidth = 0.75;
    ctx.stroke();
  }

  function drawAircraft(ctx, [x, y], heading, color, name, paint) {
    ctx.save();
    ctx.translate(x, y);
    ctx.rotate(radians(heading));
    ctx.beginPath();
    SHAPE.forEach(([right, along]) => ctx.lineTo(right * SHAPE_PX, -along * SHAPE_PX));
    ctx.closePath();
    ctx.fillStyle = color;
    ctx.fill();
    ctx.strokeStyle = paint.edge;
    ctx.lineWidth = 0.75;
    ctx.stroke();
    ctx.restore();
    ctx.lineWidth = 3;
    ctx.lineJoin = "round";
    ctx.strokeStyle = paint.halo;
    ctx.font = "600 12px system-ui, sans-serif";
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.strokeText(name, x + 12, y - 18);
    S.text(ctx, name, x + 12, y - 18, { color: paint.words, bold: true });
  }

  function aspect(episode, config) {
    const { box } = prepare(episode, separationOf(config));
    return Math.max(0.6, Math.min(0.85, (box.high[1] - box.low[1]) / (box.high[0] - box.low[0])));
  }

  S.scenes.airspace = { pace: 60, aspect: aspect, draw: draw };
  S.scenes.horizontal_cr = { pace: 300, aspect: aspect, draw: draw };
})(window.Slipstream);
