#include "racing/observation.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace slipstream::racing {
namespace {

constexpr double kAside = 2.0;   // metres beside the line that count as 1
constexpr double kAhead = 10.0;  // metres to a point of the line that count as 1
constexpr std::array kOtherNames{"speed", "side_speed", "yaw_rate", "x", "y", "heading_sin", "heading_cos", "distance"};
constexpr std::size_t kOtherRow = 1 + kOtherNames.size();  // in front: whether there is a car

float unit(double value) { return static_cast<float>(std::clamp(value, -1.0, 1.0)); }

}  // namespace

Observer::Observer(const RacingConfig& config) : config_(config.observation), range_m_(config.lidar.range_m) {
  const auto add = [this](const std::string& name) { frame_features_.push_back(name); };
  if (config_.scan)
    for (int i = 0; i < config.lidar.beams; ++i) add(std::string("scan_").append(std::to_string(i)));
  if (config_.speed) add("speed");
  if (config_.sway) {
    add("side_speed");
    add("yaw_rate");
  }
  if (config_.steer) add("steer");
  if (config_.line) {
    for (const char* name : {"lateral", "heading_sin", "heading_cos"}) add(name);
    for (std::size_t i = 0; i < config_.ahead_m.size(); ++i) {
      const std::string point = std::string("ahead_").append(std::to_string(i));
      add(point + "_x");
      add(point + "_y");
    }
  }
  if (config_.target)
    for (const char* name : kOtherNames) add(std::string("target_").append(name));
  own_width_ = frame_features_.size() * static_cast<std::size_t>(config_.frame_stack) +
               2 * static_cast<std::size_t>(config_.action_stack);
  width_ = own_width_ + kOtherRow * static_cast<std::size_t>(config_.others);
}

ObsBlock Observer::block() const {
  ObsBlock block{"obs", DType::kF32, {static_cast<int>(width_)}, -1.0F, 1.0F, {}};
  const auto ago = [](int steps) {
    return steps == 0 ? std::string() : std::string("_").append(std::to_string(steps)).append("_ago");
  };
  for (int frame = 0; frame < config_.frame_stack; ++frame)
    for (const std::string& name : frame_features_) block.features.push_back(name + ago(frame));
  for (int action = 1; action <= config_.action_stack; ++action)
    for (const char* axis : {"action_steer", "action_speed"}) block.features.push_back(axis + ago(action));
  for (int k = 1; k <= config_.others; ++k) {
    const std::string other = std::string("other").append(std::to_string(k)).append("_");
    block.features.push_back(other + "present");
    for (const char* name : kOtherNames) block.features.push_back(other + name);
  }
  return block;
}

std::vector<EntityRows> Observer::rows() const {
  if (config_.others == 0) return {};
  EntityRows rows{"obs", static_cast<int>(own_width_), {"present"}};
  rows.features.insert(rows.features.end(), kOtherNames.begin(), kOtherNames.end());
  return {rows};
}

void Observer::write_frame(const View& view, float* out) const {
  const State& own = *view.own;
  if (config_.scan)
    for (const float range : view.scan) *out++ = std::clamp(range / static_cast<float>(range_m_), 0.0F, 1.0F);
  if (config_.speed) *out++ = unit(own.speed / view.speed_unit);
  if (config_.sway) {
    *out++ = unit(own.speed * std::sin(own.slip) / view.speed_unit);
    *out++ = unit(own.yaw_rate / view.speed_unit);
  }
  if (config_.steer) *out++ = unit(own.steer / view.steer_max);
  const double c = std::cos(own.yaw);
  const double s = std::sin(own.yaw);
  if (config_.line) {
    const double error = own.yaw - view.here->heading;
    *out++ = unit(view.here->lateral / kAside);
    *out++ = unit(std::sin(error));
    *out++ = unit(std::cos(error));
    for (const double ahead : config_.ahead_m) {
      const Point p = view.line->at(view.here->s + ahead);
      const double dx = p.x - own.x;
      const double dy = p.y - own.y;
      *out++ = unit((dx * c + dy * s) / kAhead);
      *out++ = unit((dy * c - dx * s) / kAhead);
    }
  }
  if (!config_.target) return;
  if (view.target == nullptr) {
    std::fill_n(out, kOtherNames.size(), 0.0F);
    return;
  }
  write_motion(view, *view.target, out);
}

float* Observer::write_other(const View& view, const State* other, float* out) const {
  if (other == nullptr) return std::fill_n(out, kOtherRow, 0.0F);
  *out++ = 1.0F;
  return write_motion(view, *other, out);
}

float* Observer::write_motion(const View& view, const State& other, float* out) const {
  const State& own = *view.own;
  const double c = std::cos(own.yaw);
  const double s = std::sin(own.yaw);
  const double dx = other.x - own.x;
  const double dy = other.y - own.y;
  *out++ = unit(other.speed / view.speed_unit);
  *out++ = unit(other.speed * std::sin(other.slip) / view.speed_unit);
  *out++ = unit(other.yaw_rate / view.speed_unit);
  *out++ = unit((dx * c + dy * s) / range_m_);
  *out++ = unit((dy * c - dx * s) / range_m_);
  *out++ = unit(std::sin(other.yaw - own.yaw));
  *out++ = unit(std::cos(other.yaw - own.yaw));
  *out++ = unit(std::hypot(dx, dy) / range_m_);
  return out;
}

}  // namespace slipstream::racing
