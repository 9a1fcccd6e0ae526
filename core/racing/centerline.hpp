// The line a track is measured along: how far a point is, and how far beside it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace slipstream::racing {

struct Point {
  double x = 0.0;
  double y = 0.0;
};

struct Progress {
  double s = 0.0;        // metres along the line from its first point
  double lateral = 0.0;  // metres beside it, left positive
  double heading = 0.0;  // of the line there, radians
  int segment = 0;
};

// A polyline through points; a closed one goes on from the last to the first.
class Centerline {
 public:
  // Throws std::invalid_argument for fewer than two points (three if closed), points that are not finite, or equal
  // neighbours.
  Centerline(std::vector<Point> points, bool closed);

  // Takes other points into the same memory; throws as the constructor does. Allocates only beyond `reserve`.
  void assign(std::span<const Point> points, bool closed);
  void reserve(std::size_t points);

  [[nodiscard]] double length() const { return start_.back(); }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] std::span<const Point> points() const { return points_; }
  [[nodiscard]] int segments() const { return static_cast<int>(start_.size()) - 1; }
  [[nodiscard]] Point at(double s) const;           // s is taken around a closed line, and within an open one
  [[nodiscard]] double heading_at(double s) const;  // of the line there, radians

  // The nearest point of the whole line.
  [[nodiscard]] Progress project(double x, double y) const;
  // The nearest point among those within `reach` metres along the line of where something was: where two parts of a
  // track run side by side it does not change over to the other.
  [[nodiscard]] Progress project_near(double x, double y, const Progress& before, double reach) const;

 private:
  void measure();
  [[nodiscard]] std::size_t segment_at(double s) const;  // s within the line
  [[nodiscard]] double within(double s) const;
  // Compares a segment's nearest point with the best so far.
  void consider(int segment, double x, double y, double& nearest, Progress& best) const;

  std::vector<Point> points_;
  bool closed_;
  std::vector<double> start_;  // [segments + 1], s at which each begins; the last is the whole length
};

}  // namespace slipstream::racing
