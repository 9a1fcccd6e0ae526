#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>

#include "bind/fields.hpp"
#include "drmario/engine.hpp"
#include "drmario/oracle.hpp"
#include "drmario/planner.hpp"
#include "drmario/world.hpp"

namespace slipstream {
namespace {

using namespace drmario;
using Bytes = In<std::uint8_t, 1>;
using Seed = std::pair<std::uint8_t, std::uint8_t>;

template <std::size_t N>
std::array<std::uint8_t, N> bytes_of(const Bytes& from, const char* what) {
  if (from.shape(0) != N)
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(N) + " bytes, not " +
                                std::to_string(from.shape(0)));
  std::array<std::uint8_t, N> out;
  std::copy_n(from.data(), N, out.begin());
  return out;
}

template <class T>
nb::ndarray<nb::numpy, T> array_of(const T* from, std::size_t rows, std::size_t columns = 0) {
  const std::size_t count = rows * std::max<std::size_t>(1, columns);
  auto copy = std::make_unique<T[]>(count);
  std::copy_n(from, count, copy.get());
  T* raw = copy.release();
  const nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  const std::array<std::size_t, 2> shape{rows, columns};
  return nb::ndarray<nb::numpy, T>(raw, columns == 0 ? 1 : 2, shape.data(), owner);
}

Start start_of(const std::array<int, 3>& pose, int threshold, bool odd_next, int speed_counter, int hor_velocity,
               int held) {
  if (threshold < 0 || threshold > 69) throw std::invalid_argument("a threshold is 0 to 69");
  return {{static_cast<std::int8_t>(pose[0]), static_cast<std::int8_t>(pose[1]), static_cast<std::int8_t>(pose[2])},
          threshold,
          static_cast<std::uint8_t>(speed_counter),
          static_cast<std::uint8_t>(hor_velocity),
          static_cast<std::uint8_t>(held),
          odd_next};
}

// One or two bottles under one frame counter.
struct Game {
  std::array<Player, 2> players;
  int count = 1;
  std::uint8_t counter = 1;  // of the next frame
  std::array<Happened, 2> happened;

  void step(const std::array<std::uint8_t, 2>& buttons) {
    const bool over = players[0].terminal != Terminal::kNone || (count == 2 && players[1].terminal != Terminal::kNone);
    happened = {};
    if (over) return;
    if (count == 1) {
      happened[0] = play_frame(players[0], counter, buttons[0]);
    } else {
      for (std::size_t p = 0; p < 2; ++p) happened[p] = play_frame(players[p], players[1 - p], counter, buttons[p]);
    }
    ++counter;
  }
};

}  // namespace

void bind_drmario(nb::module_& m) {
  nb::class_<Player>(m, "DrMarioPlayer", "One bottle.")
      .def_prop_ro(
          "board", [](const Player& p) { return array_of(p.cells.data(), kRows, kColumns); }, nb::rv_policy::move)
      .def_prop_ro(
          "reserve", [](const Player& p) { return array_of(p.reserve.data(), kReserve); }, nb::rv_policy::move)
      .def_prop_ro(
          "pill",
          [](const Player& p) { return std::tuple<int, int, int>(p.fall.pose.row, p.fall.pose.col, p.fall.pose.rot); })
      .def_prop_ro("colours", [](const Player& p) { return std::pair<int, int>(p.colours[0], p.colours[1]); })
      .def_prop_ro("preview", [](const Player& p) { return std::pair<int, int>(p.preview[0], p.preview[1]); })
      .def_prop_ro("threshold", &Player::threshold)
      .def_prop_ro("speed_counter", [](const Player& p) { return p.fall.speed_counter; })
      .def_prop_ro("hor_velocity", [](const Player& p) { return p.fall.hor_velocity; })
      .def_prop_ro("controllable",
                   [](const Player& p) { return p.action == Action::kFall && p.terminal == Terminal::kNone; })
      .def_prop_ro("terminal", [](const Player& p) { return static_cast<int>(p.terminal); })
      .def_ro("held", &Player::held)
      .def_ro("speed_ups", &Player::speed_ups)
      .def_ro("viruses", &Player::viruses)
      .def_ro("attack", &Player::attack)
      .def_ro("score", &Player::score);

  nb::class_<Happened>(m, "DrMarioFrame", "What a frame did in one bottle.")
      .def_ro("falling", &Happened::fell)
      .def_ro("locked", &Happened::locked)
      .def_ro("spawned", &Happened::spawned)
      .def_ro("landed", &Happened::landed)
      .def_prop_ro("pose",
                   [](const Happened& h) { return std::tuple<int, int, int>(h.pose.row, h.pose.col, h.pose.rot); })
      .def_ro("cells", &Happened::cells)
      .def_ro("viruses", &Happened::viruses)
      .def_ro("runs", &Happened::runs);

  nb::class_<Game>(m, "DrMarioGame", "One or two bottles under one frame counter.")
      .def(
          "__init__",
          [](Game* self, const std::vector<Bytes>& boards, const Bytes& reserve, const std::vector<int>& speeds,
             std::uint8_t counter) {
            if (boards.empty() || boards.size() > 2 || boards.size() != speeds.size())
              throw std::invalid_argument("a game has one or two bottles, and a speed for each");
            new (self) Game();
            self->count = static_cast<int>(boards.size());
            self->counter = counter;
            const Reserve pills = bytes_of<kReserve>(reserve, "the reserve");
            for (std::size_t p = 0; p < boards.size(); ++p)
              self->players[p] = start(bytes_of<kCells>(boards[p], "a board"), pills, speeds[p]);
          },
          nb::arg("boards"), nb::arg("reserve"), nb::arg("speeds"), nb::arg("counter"))
      .def("step", &Game::step, nb::arg("buttons"))
      .def(
          "run",
          [](Game& game, const Bytes& buttons) {
            Player& me = game.players[0];
            std::size_t frames = 0;
            for (; frames < buttons.shape(0) && me.terminal == Terminal::kNone; ++frames)
              game.happened[0] = play_frame(me, game.counter++, buttons.data()[frames]);
            return frames;
          },
          nb::arg("buttons"), "Frames run by one player alone, one for each button byte, until the game is over.")
      .def_ro("counter", &Game::counter)
      .def(
          "player", [](Game& game, int p) -> Player& { return game.players.at(static_cast<std::size_t>(p)); },
          nb::rv_policy::reference_internal)
      .def(
          "happened", [](Game& game, int p) -> Happened& { return game.happened.at(static_cast<std::size_t>(p)); },
          nb::rv_policy::reference_internal);

  m.def(
      "drmario_generate",
      [](int level, const Seed& seed) {
        const Level made = generate(level, {seed.first, seed.second});
        return std::make_tuple(array_of(made.cells.data(), kRows, kColumns), array_of(made.reserve.data(), kReserve),
                               Seed(made.after.r0, made.after.r1));
      },
      nb::arg("level"), nb::arg("seed"), "Board, reserve, and the generator's state when the last virus is placed.");
  m.def(
      "drmario_generate_pair",
      [](int first, int second, const Seed& seed) {
        const auto made = generate_pair(first, second, {seed.first, seed.second});
        return std::make_tuple(array_of(made[0].cells.data(), kRows, kColumns),
                               array_of(made[1].cells.data(), kRows, kColumns),
                               array_of(made[0].reserve.data(), kReserve));
      },
      nb::arg("first"), nb::arg("second"), nb::arg("seed"), "Both boards and the reserve.");
  const auto planner = [&m](const char* name, auto how, const char* doc) {
    m.def(
        name,
        [how](const Bytes& board, const std::array<int, 3>& pose, int threshold, bool odd_next, int speed_counter,
              int hor_velocity, int held, bool both) {
          const Start start = start_of(pose, threshold, odd_next, speed_counter, hor_velocity, held);
          const Cells cells = bytes_of<kCells>(board, "a board");
          Costs costs;
          how(cells, start, costs, both);
          return array_of(costs.data(), kPlacements);
        },
        nb::arg("board"), nb::arg("pose"), nb::arg("threshold"), nb::arg("odd_next"), nb::arg("speed_counter"),
        nb::arg("hor_velocity"), nb::arg("held"), nb::arg("both"), doc);
  };
  planner("drmario_plan", &plan, "Fewest frames to lock at each placement; 65535: it cannot be reached.");
  planner("drmario_plan_plainly", &plan_plainly, "The same by plain search, for tests.");
  m.def(
      "drmario_script",
      [](const Bytes& board, const std::array<int, 3>& pose, int threshold, bool odd_next, int speed_counter,
         int hor_velocity, int held, bool both, int placement) {
        const Start start = start_of(pose, threshold, odd_next, speed_counter, hor_velocity, held);
        const auto buttons = script(bytes_of<kCells>(board, "a board"), start, placement, both);
        return nb::bytes(buttons.data(), buttons.size());
      },
      nb::arg("board"), nb::arg("pose"), nb::arg("threshold"), nb::arg("odd_next"), nb::arg("speed_counter"),
      nb::arg("hor_velocity"), nb::arg("held"), nb::arg("both"), nb::arg("placement"),
      "Buttons, frame by frame; empty where the placement cannot be reached.");
  m.def(
      "drmario_seed",
      [](int number) {
        const Lfsr state = Lfsr::numbered(number);
        return Seed(state.r0, state.r1);
      },
      nb::arg("number"), "The console's states by number, 1 to 32767.");
  m.def(
      "drmario_reachable", [](const Seed& seed) { return Lfsr{seed.first, seed.second}.reachable(); }, nb::arg("seed"),
      "Whether a console can ever be in this state.");

  bind_fields<Planes>(m, "DrMarioPlanes");
  bind_fields<GamesConfig>(m, "GamesConfig");
  bind_fields<DrMarioConfig>(m, "DrMarioConfig");
  m.def("make_drmario", &make_vec_env<DrMarioWorld>, nb::arg("config"), nb::arg("num_worlds"), nb::arg("options"),
        "A batch of games.");
}

}  // namespace slipstream
