#include "drmario/level.hpp"

namespace slipstream::drmario {
namespace {

constexpr std::array<std::uint8_t, 16> kColourTable{0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0, 1, 2, 1};

constexpr int highest_row(int level) { return level < 15 ? 9 : level < 17 ? 10 : level < 19 ? 11 : 12; }

Reserve draw_reserve(Lfsr& rng) {
  Reserve reserve{};
  unsigned id = 0;
  for (std::size_t i = kReserve; i-- > 0;) {  // filled backwards, played forwards
    rng.step();
    id = (id + (rng.r0 & 15U)) % 9U;
    reserve[i] = static_cast<std::uint8_t>(id);
  }
  return reserve;
}

// Which colours stand exactly two cells away, one bit each.
unsigned blocked_colours(const Cells& cells, int at) {
  unsigned blocked = 0;
  const auto look = [&](int i) {
    if (i >= 0 && i < kCells && !is_free(cells[static_cast<std::size_t>(i)]))
      blocked |= 1U << colour_of(cells[static_cast<std::size_t>(i)]);
  };
  const int column = at % kColumns;
  look(at - 2 * kColumns);
  look(at + 2 * kColumns);
  if (column >= 2) look(at - 2);
  if (column <= 5) look(at + 2);
  return blocked;
}

// One try to place a virus; false where the bottle's end is reached before a cell that may have one.
bool add_virus(Cells& cells, int level, int remaining, Lfsr& rng) {
  do rng.step();
  while ((rng.r0 & 15) > highest_row(level));
  const int row = rng.r0 & 15;
  const int column = rng.r1 & 7;
  unsigned colour = static_cast<unsigned>(remaining) & 3U;
  if (colour == 3U) {
    rng.step();
    colour = kColourTable[rng.r1 & 15U];
  }
  for (int at = (kRows - 1 - row) * kColumns + column; at < kCells; ++at) {
    if (!is_free(cells[static_cast<std::size_t>(at)])) continue;
    const unsigned blocked = blocked_colours(cells, at);
    if (blocked == 7U) continue;
    while ((blocked >> colour) & 1U) colour = colour == 0U ? 2U : colour - 1U;
    cells[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(kVirus | colour);
    return true;
  }
  return false;
}

}  // namespace

Level generate(int level, Lfsr seed) {
  Level made{};
  made.cells.fill(kEmpty);
  made.reserve = draw_reserve(seed);
  for (int remaining = viruses_of(level); remaining > 0;)
    if (add_virus(made.cells, level, remaining, seed)) --remaining;
  made.after = seed;
  return made;
}

std::array<Level, 2> generate_pair(int first, int second, Lfsr seed) {
  if (viruses_of(first) == viruses_of(second) && highest_row(first) == highest_row(second)) {
    const Level made = generate(first, seed);
    return {made, made};
  }
  std::array<Level, 2> made{};
  const Reserve reserve = draw_reserve(seed);
  const std::array<int, 2> levels{first, second};
  std::array<int, 2> remaining{viruses_of(first), viruses_of(second)};
  for (Level& level : made) {
    level.cells.fill(kEmpty);
    level.reserve = reserve;
  }
  while (remaining[0] + remaining[1] > 0)
    for (std::size_t p = 0; p < 2; ++p)
      if (remaining[p] > 0 && add_virus(made[p].cells, levels[p], remaining[p], seed)) --remaining[p];
  for (Level& level : made) level.after = seed;
  return made;
}

}  // namespace slipstream::drmario
