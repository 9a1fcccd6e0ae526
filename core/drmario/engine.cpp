#include "drmario/engine.hpp"

#include <algorithm>

namespace slipstream::drmario {
namespace {

// Frames without a drop, by speed: a setting begins at its base and moves on with every speed-up.
constexpr std::array<std::uint8_t, 81> kThresholds{
    69, 67, 65, 63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21, 19, 18,
    17, 16, 15, 14, 13, 12, 11, 10, 9,  9,  8,  8,  7,  7,  6,  6,  5,  5,  5,  5,  5,  5,  5,  5,  5,  5,  5,
    5,  4,  4,  4,  4,  4,  3,  3,  3,  3,  3,  2,  2,  2,  2,  2,  1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  0};
constexpr std::array<int, 3> kBase{15, 25, 31};
constexpr int kMostSpeedUps = 49;
constexpr std::uint8_t kRowsDrawn = 15;  // a redrawn bottle takes 16 frames
constexpr std::uint8_t kThrowFrames = 22;
constexpr int kMostDoublings = 5;  // 1, 2, 4, 8, 16, 32, 32, ...
constexpr int kVirusPoints = 100;
constexpr std::uint8_t kLeastAttack = 2;

void next_pill(Player& me) {
  me.colours = me.preview;
  me.preview = colours_of(me.reserve[me.next]);
  me.next = static_cast<std::uint8_t>((me.next + 1) % kReserve);
  me.fall.pose = {};
  me.fall.speed_counter = 0;
  me.pills = static_cast<std::uint8_t>((me.pills + 1) % 100);
  if (me.pills % 10 == 0) me.speed_ups = static_cast<std::uint8_t>(std::min(me.speed_ups + 1, kMostSpeedUps));
}

void spawn(Player& me, Happened& happened) {
  next_pill(me);
  me.combo = 0;
  happened.spawned = true;
  if (fits(me.cells, me.fall.pose)) {
    me.action = Action::kSent;
    return;
  }
  write_pill(me.cells, me.fall.pose, me.colours);
  me.terminal = Terminal::kTopOut;
}

void note(Player& me, const Matches& found, Happened& happened) {
  happened.cells += found.cells;
  happened.viruses += found.viruses;
  happened.runs += found.runs;
  me.matched |= found.runs > 0 ? 1 : 0;
  for (int k = 0; k < found.runs; ++k) {
    if (me.combo < me.attack_colours.size()) me.attack_colours[me.combo] = found.colours[static_cast<std::size_t>(k)];
    me.combo = static_cast<std::uint8_t>(std::min(me.combo + 1, 255));
  }
  for (int k = 0; k < found.viruses; ++k) {
    me.score += kVirusPoints * (me.speed + 1) << std::min<int>(me.kills, kMostDoublings);
    ++me.kills;
  }
  me.viruses -= found.viruses;
  if (found.viruses > 0 && me.viruses <= 0) me.terminal = Terminal::kClear;
}

// What follows a lock, one step a frame.
void settle(Player& me, Happened& happened) {
  switch (me.step) {
    case 0:
      me.kills = 0;
      ++me.step;
      return;
    case 3:
      if (me.rows_left != 0xFF) return;
      me.step = drop_loose(me.cells) ? 2 : 4;
      me.rows_left = kRowsDrawn;
      return;
    case 4:
      me.matched = 0;
      ++me.step;
      return;
    case 5:
      note(me, match_rows(me.cells), happened);
      ++me.step;
      return;
    case 6:
      note(me, match_columns(me.cells), happened);
      ++me.step;
      return;
    case 7:
      if (me.matched != 0 || me.frayed != 0) clear_matched(me.cells);
      me.frayed = 0;
      me.rows_left = kRowsDrawn;
      me.step = me.matched != 0 ? 1 : 8;
      return;
    case 8:
      me.step = 0;
      me.action = Action::kAttack;
      return;
    default:
      ++me.step;
  }
}

void fall(Player& me, std::uint8_t counter, std::uint8_t pressed, Happened& happened) {
  if (drop(me.cells, me.fall, me.held, (counter & 1) != 0, me.threshold())) happened = lock(me);
  happened.fell = true;
  shift(me.cells, me.fall, me.held, pressed);
  rotate(me.cells, me.fall, me.held, pressed);
}

// Sends what was earned, takes what the other has sent.
void exchange(Player& me, Player* other, std::uint8_t counter, Happened& happened) {
  me.action = Action::kPause;
  if (other == nullptr) return;
  if (me.combo >= kLeastAttack) me.attack = static_cast<std::uint8_t>(std::min(me.attack + me.combo, 255));
  me.combo = 0;
  if (other->attack < kLeastAttack) return;
  const int size = std::min<int>(other->attack, 4);
  const int first = counter & (size < 4 ? 3 : 1);
  const int apart = size == 2 ? 4 : 2;
  for (int k = 0; k < size; ++k)
    me.cells[static_cast<std::size_t>(first + k * apart)] =
        static_cast<std::uint8_t>(kSingle | other->attack_colours[static_cast<std::size_t>(k)]);
  other->attack = 0;
  me.frayed = 1;
  me.action = Action::kPlaced;
  happened.landed = true;
}

Happened frame(Player& me, Player* other, std::uint8_t counter, std::uint8_t buttons) {
  Happened happened;
  if (me.terminal != Terminal::kNone) return happened;
  if (me.rows_left != 0xFF) --me.rows_left;
  const std::uint8_t now = cleaned(buttons);
  const auto pressed = static_cast<std::uint8_t>(now & ~me.held);
  me.held = now;
  switch (me.action) {
    case Action::kFall:
      fall(me, counter, pressed, happened);
      break;
    case Action::kPlaced:
      settle(me, happened);
      break;
    case Action::kAttack:
      exchange(me, other, counter, happened);
      break;
    case Action::kSent:
      me.action = Action::kFall;
      break;
    case Action::kPause:
      me.thrown = 0;
      me.action = Action::kThrow;
      break;
    case Action::kThrow:
      // At low speed the throw moves on odd frames only; with two players there is none.
      if (other == nullptr && me.speed == 0 && (counter & 1) == 0) break;
      if (++me.thrown == kThrowFrames || other != nullptr) spawn(me, happened);
      break;
  }
  return happened;
}

}  // namespace

int Player::threshold() const {
  const auto at = static_cast<std::size_t>(kBase[speed] + speed_ups);
  return kThresholds[std::min(at, kThresholds.size() - 1)];
}

Happened lock(Player& me) {
  Happened happened;
  happened.locked = true;
  happened.pose = me.fall.pose;
  write_pill(me.cells, me.fall.pose, me.colours);
  me.rows_left = static_cast<std::uint8_t>(kRows - 1 - me.fall.pose.row);
  me.action = Action::kPlaced;
  if (me.fall.pose.vertical() && me.fall.pose.row == kRows - 1) me.frayed = 1;
  return happened;
}

Player start(const Cells& cells, const Reserve& reserve, int speed) {
  Player me;
  me.cells = cells;
  me.reserve = reserve;
  me.speed = static_cast<std::uint8_t>(speed);
  me.colours = colours_of(reserve[1]);
  me.preview = colours_of(reserve[2]);
  me.viruses = count_viruses(cells);
  return me;
}

Happened play_frame(Player& me, std::uint8_t counter, std::uint8_t buttons) {
  return frame(me, nullptr, counter, buttons);
}

Happened play_frame(Player& me, Player& other, std::uint8_t counter, std::uint8_t buttons) {
  return frame(me, &other, counter, buttons);
}

}  // namespace slipstream::drmario
