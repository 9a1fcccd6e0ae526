/* Games on a canvas: bottles with viruses and pills, the next pill, what is left and how long it took. */
"use strict";
(function (S) {
  const ROWS = 16;
  const COLUMNS = 8;
  const PANEL = 5; // cells beside a bottle, for words
  const COLOURS = ["#F0C419", "#E0453A", "#3F7FE8"]; // yellow, red, blue
  const DEEP = ["#B88F00", "#A3261D", "#2457B0"];
  const THEMES = {
    light: { ground: "#E9EDF2", glass: "#10151B", edge: "#7C8794", words: "#1C2127", quiet: "#56606B" },
    dark: { ground: "#151A21", glass: "#0B0E12", edge: "#4A5666", words: "#F2F4F7", quiet: "#98A2B0" },
  };
  const MARKS = ["", "cleared", "topped out"];
  const EMPTY = 0xf0;
  const VIRUS = 0xd0;
  const JOINED = { 0x40: "bottom", 0x50: "top", 0x60: "right", 0x70: "left" }; // which side is open to the other half

  const kept = new WeakMap();
  function columnsOf(episode) {
    if (!kept.has(episode)) {
      const of = {};
      episode.fields.forEach((name, i) => (of[name] = i));
      kept.set(episode, of);
    }
    return kept.get(episode);
  }

  /* Kind, colour, row and column of a pill's halves. */
  function halves(pill, row, column, rot) {
    const [first, second] = [Math.floor(pill / 3), pill % 3];
    const [here, there] = rot >= 2 ? [second, first] : [first, second];
    return rot % 2
      ? [[0x50, here, row, column], [0x40, there, row + 1, column]]
      : [[0x60, here, row, column], [0x70, there, row, column + 1]];
  }

  /* One state per decision lasts as long as its frames do; one state per frame lasts a tick. */
  function times(episode) {
    const column = columnsOf(episode).frames;
    let last = 0;
    return episode.states.map((state) => {
      const latest = Math.max(...state.map((player) => player[column] || 0));
      last = Math.max(last, latest * 0.016639267339780495);
      return last;
    });
  }

  function draw(ctx, size, episode, config, t, theme) {
    const paint = THEMES[theme];
    const of = columnsOf(episode);
    const i = Math.floor(t);
    const players = episode.agents.length;
    const wide = players * (COLUMNS + PANEL) + 1.5;
    const cell = Math.min((size.width - 8) / wide, (size.height - 8) / (ROWS + 1.2));
    ctx.fillStyle = paint.ground;
    ctx.fillRect(0, 0, size.width, size.height);
    ctx.translate((size.width - wide * cell) / 2, (size.height - (ROWS + 1) * cell) / 2);
    const before = i > 0 ? episode.states[i - 1] : null;
    const fresh = Math.max(0, 1 - (t - i) * 2.5); // how new this state is: what has just come and gone is marked
    episode.agents.forEach((name, p) => {
      const left = 0.75 + p * (COLUMNS + PANEL);
      drawBottle(ctx, cell, left, 0.5, name, episode.states[i][p], before && before[p], of, fresh, paint);
    });
  }

  function drawBottle(ctx, cell, left, top, name, now, before, of, fresh, paint) {
    const at = (row, column) => [(left + column) * cell, (top + ROWS - 1 - row) * cell];
    ctx.beginPath();
    ctx.roundRect((left - 0.15) * cell, (top - 0.15) * cell, (COLUMNS + 0.3) * cell, (ROWS + 0.3) * cell, 0.35 * cell);
    ctx.fillStyle = paint.glass;
    ctx.fill();
    ctx.strokeStyle = paint.edge;
    ctx.lineWidth = Math.max(1.5, 0.09 * cell);
    ctx.stroke();
    for (let k = 0; k < ROWS * COLUMNS; k++) {
      const place = at(ROWS - 1 - Math.floor(k / COLUMNS), k % COLUMNS);
      const value = now[of[`cell_${k}`]];
      const was = before ? before[of[`cell_${k}`]] : value;
      drawCell(ctx, cell, value, place);
      if (fresh > 0 && was < EMPTY && value >= EMPTY) drawGone(ctx, cell, was, place, fresh);
      else if (fresh > 0 && before && was >= EMPTY && value < EMPTY) drawNew(ctx, cell, place, fresh);
    }
    if (now[of.falling]) {
      for (const [kind, colour, row, column] of halves(now[of.pill_id], now[of.pill_row], now[of.pill_col], now[of.pill_rot])) {
        if (row < ROWS) drawCell(ctx, cell, kind | colour, at(row, column));
      }
    }
    drawPanel(ctx, cell, left + COLUMNS + 0.6, top, name, now, of, paint);
  }

  function drawPanel(ctx, cell, x, top, name, now, of, paint) {
    const y = (line) => (top + 0.6 + 1.1 * line) * cell;
    const points = Math.max(10, Math.min(16, 0.56 * cell));
    const say = (line, words, color, bold) => S.text(ctx, words, x * cell, y(line), { color: color, points: points, bold: bold });
    say(0, name, paint.words, true);
    say(1, "next", paint.quiet);
    for (const [kind, colour, row, column] of halves(now[of.preview_id], 0, 0, 0)) {
      drawCell(ctx, cell, kind | colour, [(x + column) * cell, y(2) - 0.4 * cell - row * cell]);
    }
    say(3.4, `level ${now[of.level]}`, paint.words);
    say(4.4, `${now[of.viruses]} viruses`, paint.words);
    say(5.4, `${now[of.pills]} pills`, paint.words);
    say(6.4, `${(now[of.frames] * 0.016639267339780495).toFixed(1)} s`, paint.words);
    say(7.4, `score ${now[of.score]}`, paint.quiet);
    say(8.6, MARKS[now[of.terminal]] || "", paint.words, true);
  }

  function drawCell(ctx, cell, value, [x, y]) {
    if (value >= EMPTY) return;
    const kind = value & 0xf0;
    const colour = value & 3;
    const [cx, cy] = [x + cell / 2, y + cell / 2];
    if (kind === VIRUS) {
      drawVirus(ctx, cell, cx, cy, colour);
      return;
    }
    ctx.fillStyle = ctx.strokeStyle = COLOURS[colour];
    if (kind === 0xb0) { // about to vanish
      ctx.lineWidth = 0.09 * cell;
      ctx.beginPath();
      ctx.arc(cx, cy, 0.38 * cell, 0, 2 * Math.PI);
      ctx.stroke();
      return;
    }
    const r = 0.44 * cell;
    const side = JOINED[kind];
    const [l, rt] = [side === "left" ? x : cx - r, side === "right" ? x + cell : cx + r];
    const [tp, bt] = [side === "top" ? y : cy - r, side === "bottom" ? y + cell : cy + r];
    const round = { // corners: upper left, upper right, lower right, lower left
      left: [0, r, r, 0], right: [r, 0, 0, r], top: [0, 0, r, r], bottom: [r, r, 0, 0],
    }[side] || [r, r, r, r];
    ctx.beginPath();
    ctx.roundRect(l, tp, rt - l, bt - tp, round);
    ctx.fill();
    ctx.lineWidth = Math.max(0.5, 0.04 * cell);
    ctx.strokeStyle = DEEP[colour];
    ctx.stroke();
    ctx.globalAlpha = 0.55;
    ctx.fillStyle = "#FFFFFF";
    ctx.beginPath();
    ctx.arc(x + 0.36 * cell, y + 0.34 * cell, 0.09 * cell, 0, 2 * Math.PI);
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  /* A round body with feelers and eyes: nobody takes it for a pill. */
  function drawVirus(ctx, cell, x, y, colour) {
    ctx.strokeStyle = ctx.fillStyle = COLOURS[colour];
    ctx.lineWidth = 0.09 * cell;
    ctx.lineCap = "round";
    ctx.beginPath();
    for (const side of [-1, 1]) {
      ctx.moveTo(x + 0.16 * side * cell, y - 0.2 * cell);
      ctx.lineTo(x + 0.32 * side * cell, y - 0.42 * cell);
      ctx.moveTo(x + 0.16 * side * cell, y + 0.2 * cell);
      ctx.lineTo(x + 0.28 * side * cell, y + 0.41 * cell);
    }
    ctx.stroke();
    disc(ctx, x, y, 0.33 * cell, COLOURS[colour]);
    for (const side of [-1, 1]) {
      disc(ctx, x + 0.13 * side * cell, y - 0.06 * cell, 0.1 * cell, "#FFFFFF");
      disc(ctx, x + 0.13 * side * cell, y - 0.04 * cell, 0.05 * cell, "#101010");
    }
  }

  function disc(ctx, x, y, r, color) {
    ctx.beginPath();
    ctx.arc(x, y, r, 0, 2 * Math.PI);
    ctx.fillStyle = color;
    ctx.fill();
  }

  function drawGone(ctx, cell, was, [x, y], fresh) {
    ctx.globalAlpha = fresh;
    ctx.strokeStyle = COLOURS[was & 3];
    ctx.lineWidth = 0.1 * cell;
    ctx.beginPath();
    ctx.arc(x + cell / 2, y + cell / 2, (0.44 - 0.2 * fresh) * cell, 0, 2 * Math.PI);
    ctx.stroke();
    ctx.globalAlpha = 1;
  }

  function drawNew(ctx, cell, [x, y], fresh) {
    ctx.globalAlpha = 0.7 * fresh;
    ctx.strokeStyle = "#FFFFFF";
    ctx.lineWidth = 0.07 * cell;
    ctx.strokeRect(x + 0.04 * cell, y + 0.04 * cell, 0.92 * cell, 0.92 * cell);
    ctx.globalAlpha = 1;
  }

  S.scenes.drmario = { pace: 1, times: times, draw: draw, aspect: (episode) => (episode.agents.length > 1 ? 0.62 : 0.7) };
})(window.Slipstream);
