// What a driver sees, flat: frames of sensor readings, newest first, then the last actions, then rows of other cars.
#pragma once

#include <span>
#include <vector>

#include "racing/config.hpp"
#include "slipstream/spec.hpp"

namespace slipstream::racing {

// What a frame is made from.
struct View {
  const State* own = nullptr;
  const State* target = nullptr;  // null where there is none
  const Progress* here = nullptr;
  const Centerline* line = nullptr;
  std::span<const float> scan;
  double steer_max = 1.0;
  double speed_unit = 1.0;  // what speeds are divided by
};

class Observer {
 public:
  explicit Observer(const RacingConfig& config);

  [[nodiscard]] ObsBlock block() const;
  // Which part of it are rows of other cars; none where they are not shown.
  [[nodiscard]] std::vector<EntityRows> rows() const;
  [[nodiscard]] std::size_t frame_width() const { return frame_features_.size(); }
  [[nodiscard]] std::size_t width() const { return width_; }

  // Writes one frame; finite and within the block's bounds for any state.
  void write_frame(const View& view, float* out) const;
  // Writes one row of another car, zeros for nobody; returns where it ends.
  float* write_other(const View& view, const State* other, float* out) const;

 private:
  float* write_motion(const View& view, const State& other, float* out) const;

  ObservationConfig config_;
  double range_m_;
  std::vector<std::string> frame_features_;
  std::size_t own_width_;  // of all before the rows
  std::size_t width_;
};

}  // namespace slipstream::racing
