/* Races on a canvas: the road, cars of their size turned as they drive, where they came from, speeds and laps. */
"use strict";
(function (S) {
  const THEMES = {
    light: { ground: [214, 220, 228], kerb: [118, 129, 143], road: [252, 253, 254], words: "#1C2127", quiet: "#56606B", edge: "#101418", nose: "#FFFFFF", panel: "rgba(214,220,228,0.9)" },
    dark: { ground: [17, 21, 26], kerb: [122, 133, 148], road: [52, 60, 71], words: "#F2F4F7", quiet: "#98A2B0", edge: "#0B0E12", nose: "#FFFFFF", panel: "rgba(17,21,26,0.88)" },
  };
  // Length and width in metres by config.cars[].vehicle; a test holds this to slipstream.worlds.racing.cars.
  const SIZES = { f1tenth: [0.58, 0.31], limo: [0.32, 0.225], f1fifth: [0.8, 0.55], fullscale: [4.298, 1.674] };
  const READABLE_PX = 6; // a car shorter than this cannot be made out
  const FOLLOW_PX = 34; // how long the first car is drawn when the camera follows it
  const LINGER_S = 1; // a car that has crashed is followed for so long
  const TOGETHER_PX = 10; // how long it must at least be where the camera follows all of them
  const TRAIL_S = 3;
  const ROW_PX = 20;
  const ENTRY_PX = 196;
  const css = (rgb) => `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;

  const bodies = (episode, config) => episode.agents.map((_, i) => SIZES[(((config || {}).cars || [])[i] || {}).vehicle] || SIZES.f1tenth);
  const isOpen = (config) => ((config || {}).track || {}).kind === "corridor";

  // --- the road ---

  /* How free each cell and its neighbourhood is, 0 to 255: walls in steps of a cell look ragged. */
  function softened(backdrop) {
    const { rows, columns } = backdrop;
    let from = S.cells(backdrop).map((occupied) => (occupied ? 0 : 255));
    for (let pass = 0; pass < 4; pass++) {
      for (const step of [1, columns]) {
        const to = new Uint8Array(from.length);
        for (let k = 0; k < from.length; k++) {
          const before = k >= step ? from[k - step] : 0;
          const after = k + step < from.length ? from[k + step] : 0;
          to[k] = (before + 2 * from[k] + after) >> 2;
        }
        from = to;
      }
    }
    return { free: from, rows: rows, columns: columns };
  }

  function extent(backdrop) {
    const cells = S.cells(backdrop);
    const low = [Infinity, Infinity];
    const high = [-Infinity, -Infinity];
    for (let k = 0; k < cells.length; k++) {
      if (cells[k]) continue;
      const at = [k % backdrop.columns, Math.floor(k / backdrop.columns)];
      for (const axis of [0, 1]) {
        low[axis] = Math.min(low[axis], at[axis]);
        high[axis] = Math.max(high[axis], at[axis] + 1);
      }
    }
    const [x, y, yaw] = backdrop.origin;
    const corners = [[low[0], low[1]], [high[0], low[1]], [low[0], high[1]], [high[0], high[1]]].map(([c, r]) => {
      const [along, up] = [c * backdrop.resolution_m, r * backdrop.resolution_m];
      return [x + Math.cos(yaw) * along - Math.sin(yaw) * up, y + Math.sin(yaw) * along + Math.cos(yaw) * up];
    });
    return {
      low: [0, 1].map((axis) => Math.min(...corners.map((p) => p[axis]))),
      high: [0, 1].map((axis) => Math.max(...corners.map((p) => p[axis]))),
    };
  }

  /* The road as a picture: ground, a kerb where it ends, road; finer than the grid so that edges are smooth. */
  function paintRoad(soft, paint) {
    const small = document.createElement("canvas");
    small.width = soft.columns;
    small.height = soft.rows;
    const context = small.getContext("2d");
    const image = context.createImageData(soft.columns, soft.rows);
    for (let k = 0; k < soft.free.length; k++) {
      const row = soft.rows - 1 - Math.floor(k / soft.columns);
      const to = 4 * (row * soft.columns + (k % soft.columns));
      image.data[to] = soft.free[k];
      image.data[to + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    const finer = Math.max(1, Math.min(5, Math.floor(Math.sqrt(2.5e6 / soft.free.length))));
    const road = document.createElement("canvas");
    road.width = finer * soft.columns;
    road.height = finer * soft.rows;
    const fine = road.getContext("2d", { willReadFrequently: true });
    fine.imageSmoothingQuality = "high";
    fine.drawImage(small, 0, 0, road.width, road.height);
    const shades = table(paint);
    const pixels = fine.getImageData(0, 0, road.width, road.height);
    for (let k = 0; k < pixels.data.length; k += 4) {
      const shade = shades[pixels.data[k]];
      pixels.data[k] = shade[0];
      pixels.data[k + 1] = shade[1];
      pixels.data[k + 2] = shade[2];
    }
    fine.putImageData(pixels, 0, 0);
    return road;
  }

  function table(paint) {
    const stops = [[0, paint.ground], [88, paint.ground], [108, paint.kerb], [140, paint.kerb], [160, paint.road], [255, paint.road]];
    return Array.from({ length: 256 }, (_, free) => {
      const k = Math.max(1, stops.findIndex(([stop]) => stop >= free));
      const [[low, from], [high, to]] = [stops[k - 1], stops[k]];
      return from.map((c, i) => Math.round(c + ((free - low) / (high - low)) * (to[i] - c)));
    });
  }

  const kept = new WeakMap(); // backdrop -> what was made of it
  function roadOf(backdrop, theme) {
    if (!kept.has(backdrop)) kept.set(backdrop, { soft: softened(backdrop), extent: extent(backdrop), pictures: {} });
    const road = kept.get(backdrop);
    road.pictures[theme] = road.pictures[theme] || paintRoad(road.soft, THEMES[theme]);
    return { picture: road.pictures[theme], low: road.extent.low, high: road.extent.high };
  }

  /* Runs of before there were backdrops: where the cars drove is all there is. */
  function driven(episode) {
    const [x, y] = [S.field(episode, "x_m"), S.field(episode, "y_m")];
    const low = [Infinity, Infinity];
    const high = [-Infinity, -Infinity];
    episode.states.forEach((state) => state.forEach((car) => [car[x], car[y]].forEach((value, axis) => {
      if (value === null) return;
      low[axis] = Math.min(low[axis], value - 1);
      high[axis] = Math.max(high[axis], value + 1);
    })));
    return { picture: null, low: low, high: high };
  }

  // --- views ---

  function fit(road, [left, top, right, bottom]) {
    const wide = road.high[0] - road.low[0];
    const tall = road.high[1] - road.low[1];
    const scale = Math.min((right - left) / wide, (bottom - top) / tall);
    return { scale: scale, center: [(road.low[0] + road.high[0]) / 2, (road.low[1] + road.high[1]) / 2], middle: [(left + right) / 2, (top + bottom) / 2] };
  }

  const pixel = (view, x, y) => [view.middle[0] + (x - view.center[0]) * view.scale, view.middle[1] - (y - view.center[1]) * view.scale];

  function drawRoad(ctx, road, backdrop, view) {
    if (!road.picture) return;
    const [x, y] = pixel(view, backdrop.origin[0], backdrop.origin[1]);
    const cell = backdrop.resolution_m * view.scale;
    ctx.save();
    ctx.translate(x, y);
    ctx.rotate(-backdrop.origin[2]);
    ctx.imageSmoothingQuality = "high";
    ctx.drawImage(road.picture, 0, -backdrop.rows * cell, backdrop.columns * cell, backdrop.rows * cell);
    ctx.restore();
  }

  const perRow = (size) => Math.max(1, Math.floor((size.width - 80) / ENTRY_PX));
  const headerPx = (cars, size) => 12 + ROW_PX * Math.ceil(cars / perRow(size));

  /* The camera where the road is too long: on all cars that drive, or have just crashed, where they are near enough to
     each other; otherwise on the leading one. */
  function following(near, leader, length, size, header) {
    const middle = [size.width / 2, (size.height + header) / 2];
    const ends = [0, 1].map((k) => [Math.min(...near.map((pose) => pose[k])), Math.max(...near.map((pose) => pose[k]))]);
    const spans = ends.map(([low, high]) => high - low + 3 * length);
    const room = [size.width - 24, size.height - header - 40];
    const scale = Math.min(FOLLOW_PX / length, room[0] / spans[0], room[1] / spans[1]);
    if (near.length < 2 || scale * length < TOGETHER_PX) return { scale: FOLLOW_PX / length, center: leader, middle: middle };
    return { scale: scale, center: ends.map(([low, high]) => (low + high) / 2), middle: middle };
  }

  function draw(ctx, size, episode, config, t, theme) {
    const paint = THEMES[theme];
    const backdrop = episode.backdrop;
    const road = backdrop ? roadOf(backdrop, theme) : driven(episode);
    const [x, y, yaw, present, laps] = ["x_m", "y_m", "yaw_rad", "present", "laps"].map((name) => S.field(episode, name));
    const i = Math.floor(t);
    const state = episode.states[i];
    const needed = isOpen(config) ? 1 : (config || {}).laps || 1;
    const drives = state.map((car) => car[present] > 0);
    const poses = episode.agents.map((_, a) => [S.value(episode, t, a, x), S.value(episode, t, a, y), S.value(episode, t, a, yaw, 2 * Math.PI)]);
    const sizes = bodies(episode, config);
    const header = headerPx(episode.agents.length, size);
    const leader = Math.max(0, drives.indexOf(true));
    const whole = fit(road, [12, header + 12, size.width - 12, size.height - 28]);
    const follows = whole.scale * sizes[leader][0] < READABLE_PX;
    const since = Math.max(0, i - Math.round(LINGER_S / (episode.tick_seconds || 0.04)));
    const lately = drives.map((_, a) => episode.states.slice(since, i + 1).some((cars) => cars[a][present] > 0));
    const view = follows ? following(poses.filter((_, a) => lately[a]), poses[leader], sizes[leader][0], size, header) : whole;

    ctx.fillStyle = css(backdrop ? paint.ground : paint.road);
    ctx.fillRect(0, 0, size.width, size.height);
    drawRoad(ctx, road, backdrop, view);
    const first = Math.max(0, i - Math.round(TRAIL_S / (episode.tick_seconds || 0.04)));
    episode.agents.forEach((_, a) => drawTrail(ctx, view, S.color(a, theme), trail(a)));
    function trail(a) {
      const points = [];
      for (let k = first; k <= i; k++) points.push([episode.states[k][a][x], episode.states[k][a][y]]);
      points.push(poses[a]);
      return points;
    }
    episode.agents.forEach((_, a) => {
      drawCar(ctx, view, poses[a], sizes[a], S.color(a, theme), drives[a] || state[a][laps] >= needed, paint);
    });
    if (follows) drawOverview(ctx, size, road, backdrop, poses, theme, paint);
    drawHeader(ctx, size, episode, config, t, theme, paint, drives, needed, header);
    S.scaleBar(ctx, size, view.scale, "m", paint.quiet);
  }

  function drawTrail(ctx, view, color, points) {
    ctx.strokeStyle = color;
    ctx.lineWidth = 2.5;
    ctx.lineCap = "round";
    const stretch = Math.max(1, Math.floor(points.length / 24));
    for (let k = stretch; k < points.length + stretch - 1; k += stretch) {
      const end = Math.min(k, points.length - 1);
      ctx.globalAlpha = 0.8 * (end / points.length);
      ctx.beginPath();
      for (let j = k - stretch; j <= end; j++) ctx.lineTo(...pixel(view, points[j][0], points[j][1]));
      ctx.stroke();
    }
    ctx.globalAlpha = 1;
  }

  function drawCar(ctx, view, pose, [length, width], color, isWhole, paint) {
    const [long, wide] = [Math.max(length * view.scale, 5), Math.max(width * view.scale, 3)];
    ctx.save();
    ctx.translate(...pixel(view, pose[0], pose[1]));
    ctx.rotate(-pose[2]);
    ctx.beginPath();
    ctx.roundRect(-long / 2, -wide / 2, long, wide, wide * 0.22);
    ctx.lineWidth = 1;
    if (!isWhole) { // out: what is left of it
      ctx.globalAlpha = 0.35;
      ctx.fillStyle = ctx.strokeStyle = color;
      ctx.fill();
      ctx.globalAlpha = 1;
      ctx.moveTo(-long / 2, -wide / 2);
      ctx.lineTo(long / 2, wide / 2);
      ctx.moveTo(-long / 2, wide / 2);
      ctx.lineTo(long / 2, -wide / 2);
      ctx.stroke();
    } else {
      ctx.fillStyle = color;
      ctx.fill();
      ctx.strokeStyle = paint.edge;
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(0.4 * long, 0);
      ctx.lineTo(0.2 * long, -0.34 * wide);
      ctx.lineTo(0.2 * long, 0.34 * wide);
      ctx.closePath();
      ctx.fillStyle = paint.nose;
      ctx.fill();
    }
    ctx.restore();
  }

  /* All of the road, small, with a dot for each car: where the camera that follows is. */
  function drawOverview(ctx, size, road, backdrop, poses, theme, paint) {
    const wide = 0.4 * size.width;
    const tall = Math.min(0.25 * size.height, Math.max(18, (wide * (road.high[1] - road.low[1])) / (road.high[0] - road.low[0]) + 8));
    ctx.save();
    ctx.translate(size.width - wide - 10, size.height - tall - 10);
    ctx.beginPath();
    ctx.rect(0, 0, wide, tall);
    ctx.clip();
    ctx.fillStyle = css(paint.ground);
    ctx.fillRect(0, 0, wide, tall);
    const view = fit(road, [4, 4, wide - 4, tall - 4]);
    drawRoad(ctx, road, backdrop, view);
    poses.forEach((pose, a) => {
      ctx.beginPath();
      ctx.arc(...pixel(view, pose[0], pose[1]), 3.5, 0, 2 * Math.PI);
      ctx.fillStyle = S.color(a, theme);
      ctx.fill();
    });
    ctx.strokeStyle = css(paint.kerb);
    ctx.lineWidth = 1;
    ctx.strokeRect(0.5, 0.5, wide - 1, tall - 1);
    ctx.restore();
  }

  function drawHeader(ctx, size, episode, config, t, theme, paint, drives, needed, height) {
    const [speed, along, laps] = ["speed_mps", "s_m", "laps"].map((name) => S.field(episode, name));
    const state = episode.states[Math.floor(t)];
    ctx.fillStyle = paint.panel;
    ctx.fillRect(0, 0, size.width, height);
    S.text(ctx, `${(t * episode.tick_seconds).toFixed(2)} s`, size.width - 12, 6 + ROW_PX / 2, { color: paint.words, points: 13, align: "right", bold: true });
    episode.agents.forEach((name, a) => {
      const left = 12 + ENTRY_PX * (a % perRow(size));
      const middle = 6 + ROW_PX * (Math.floor(a / perRow(size)) + 0.5);
      const doing = drives[a] ? `${S.value(episode, t, a, speed).toFixed(1)} m/s` : "out";
      const how = isOpen(config) ? `${(state[a][along] || 0).toFixed(1)} m` : `lap ${state[a][laps] + 1}/${needed}`;
      const words = state[a][laps] >= needed ? [name, "finished"] : [name, doing, how];
      ctx.globalAlpha = drives[a] ? 1 : 0.55;
      ctx.fillStyle = S.color(a, theme);
      ctx.fillRect(left, middle - 4, 12, 8);
      ctx.globalAlpha = 1;
      S.text(ctx, words.join("   "), left + 19, middle, { color: drives[a] ? paint.words : paint.quiet });
    });
  }

  function aspect(episode, config) {
    if (!episode.backdrop || isOpen(config)) return 0.5;
    const { low, high } = extent(episode.backdrop);
    return Math.max(0.5, Math.min(0.9, (high[1] - low[1]) / (high[0] - low[0]) + 0.05));
  }

  S.scenes.racing = { pace: 1, aspect: aspect, draw: draw, sizes: SIZES };
})(window.Slipstream);
