#include "airspace/separation.hpp"

#include <algorithm>

namespace slipstream::airspace {
namespace {

constexpr std::uint8_t kLost = 1;
constexpr std::uint8_t kCollided = 2;
constexpr std::uint8_t kNmac = 4;
constexpr std::uint8_t kNotWellClear = 8;

// Twice the fastest ground speed worth considering, NM/s: bounds how far away a violation of well clear can begin.
constexpr double kFastestClosing = 2.0 * 300.0 / kNauticalMile;

}  // namespace

double Tracks::length_nm(std::size_t aircraft) const {
  double length = 0.0;
  const std::size_t first = row(aircraft);
  for (std::size_t s = first + 1; s <= first + stay[aircraft]; ++s) {
    const Vec3 d{x[s] - x[s - 1], y[s] - y[s - 1], z[s] - z[s - 1]};
    length += std::sqrt(dot(d, d));
  }
  return length * kSeparationRadiusNm;
}

Separation::Separation(std::size_t aircraft, int substeps, double separation_nm, double collision_nm, double substep_s)
    : aircraft_(aircraft),
      stride_(static_cast<std::size_t>(substeps) + 1),
      lost_chord2_(chord2_of_nm(separation_nm)),
      collision_chord2_(chord2_of_nm(collision_nm)),
      nmac_chord2_(chord2_of_nm(kNmacNm)),
      well_clear_chord2_(chord2_of_nm(kWellClearNm)),
      alert_chord2_(
          std::max({lost_chord2_, collision_chord2_, chord2_of_nm(kWellClearNm + kWellClearTauS * kFastestClosing)})),
      substep_s_(substep_s),
      pair_(aircraft * (aircraft - 1) / 2),
      own_(aircraft * stride_),
      chord2_(stride_),
      lost_(stride_) {}

void Separation::reset(const std::vector<Vec3>& positions, const std::vector<std::uint8_t>& present) {
  std::fill(pair_.begin(), pair_.end(), std::uint8_t{0});
  figures_ = {};
  for (std::size_t i = 0; i < aircraft_; ++i) {
    for (std::size_t j = i + 1; j < aircraft_; ++j) {
      if (!present[i] || !present[j]) continue;
      const Vec3 d = positions[i] - positions[j];
      figures_.least_chord2 = std::min(figures_.least_chord2, dot(d, d));
    }
  }
}

void Separation::update(const Tracks& tracks) {
  std::fill(own_.begin(), own_.end(), std::numeric_limits<double>::infinity());
  std::fill(lost_.begin(), lost_.end(), std::uint8_t{0});
  std::size_t pair = 0;
  for (std::size_t i = 0; i < aircraft_; ++i) {
    const std::size_t a = tracks.row(i);
    for (std::size_t j = i + 1; j < aircraft_; ++j, ++pair) {
      const std::size_t together = std::min(tracks.stay[i], tracks.stay[j]);
      if (together == 0) continue;
      const std::size_t b = tracks.row(j);
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t s = 0; s <= together; ++s) {
        const double dx = tracks.x[a + s] - tracks.x[b + s];
        const double dy = tracks.y[a + s] - tracks.y[b + s];
        const double dz = tracks.z[a + s] - tracks.z[b + s];
        const double d2 = dx * dx + dy * dy + dz * dz;
        chord2_[s] = d2;
        own_[i * stride_ + s] = std::min(own_[i * stride_ + s], d2);
        own_[j * stride_ + s] = std::min(own_[j * stride_ + s], d2);
        least = std::min(least, d2);
      }
      figures_.least_chord2 = std::min(figures_.least_chord2, least);
      if (least < alert_chord2_ || (pair_[pair] & kLost) != 0) follow_pair(tracks, i, j, pair, together);
    }
  }
  for (const std::uint8_t lost : lost_) figures_.lost_substeps += lost;
}

void Separation::follow_pair(const Tracks& tracks, std::size_t i, std::size_t j, std::size_t pair,
                             std::size_t together) {
  std::uint8_t flags = pair_[pair];
  const std::size_t a = tracks.row(i);
  const std::size_t b = tracks.row(j);
  for (std::size_t s = 1; s <= together; ++s) {
    const double d2 = chord2_[s];
    const bool lost = d2 < lost_chord2_;
    if (lost && (flags & kLost) == 0) figures_.conflicts += 1.0;
    flags = static_cast<std::uint8_t>(lost ? flags | kLost : flags & ~kLost);
    lost_[s] = static_cast<std::uint8_t>(lost_[s] | static_cast<std::uint8_t>(lost));
    if (d2 < collision_chord2_ && (flags & kCollided) == 0) {
      flags |= kCollided;
      figures_.collisions += 1.0;
    }
    if (d2 <= nmac_chord2_ && (flags & kNmac) == 0) {
      flags |= kNmac;
      figures_.nmac += 1.0;
    }
    if ((flags & kNotWellClear) != 0) continue;
    // The plane through both tracks is flat enough over 12 NM to do geo.hpp's sums with chords.
    const Vec3 r{tracks.x[b + s] - tracks.x[a + s], tracks.y[b + s] - tracks.y[a + s],
                 tracks.z[b + s] - tracks.z[a + s]};
    const Vec3 before{tracks.x[b + s - 1] - tracks.x[a + s - 1], tracks.y[b + s - 1] - tracks.y[a + s - 1],
                      tracks.z[b + s - 1] - tracks.z[a + s - 1]};
    const Vec3 moved = r - before;
    const double closing = dot(r, moved) / substep_s_;
    const double tau = (well_clear_chord2_ - d2) / closing;
    const double moved2 = dot(moved, moved);
    const double miss2 = moved2 > 0.0 ? d2 - dot(r, moved) * dot(r, moved) / moved2 : d2;
    if (d2 <= well_clear_chord2_ ||
        (closing < 0.0 && tau >= 0.0 && tau <= kWellClearTauS && miss2 <= well_clear_chord2_)) {
      flags |= kNotWellClear;
      figures_.well_clear_violations += 1.0;
    }
  }
  pair_[pair] = flags;
}

}  // namespace slipstream::airspace
