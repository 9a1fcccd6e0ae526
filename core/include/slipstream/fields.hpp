// What the generated config structs are made of. `core/<world>/fields.hpp` is written by tools/fields.py from the
// world's config class in Python: members with their defaults, and `fields(visit)`, which calls
// visit(name, pointer to member, bounds, bounds of items) for each of them.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace slipstream {

// Of a number, or of the length of a text or list.
struct Bounds {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above = false;  // low itself is out
  bool below = false;  // high itself is out

  [[nodiscard]] constexpr bool hold(double value) const {  // not for NaN
    return (above ? value > low : value >= low) && (below ? value < high : value <= high);
  }
};

// An enumeration whose values have names: choice_names(E{}) lists them in order.
template <class E>
concept Choice = std::is_enum_v<E> && requires { choice_names(E{}); };

template <Choice E>
[[nodiscard]] std::string choice_name(E value) {
  return choice_names(E{})[static_cast<std::size_t>(value)];
}

// Throws std::invalid_argument where no value has this name.
template <Choice E>
[[nodiscard]] E choice_named(const std::string& name) {
  std::string known;
  const auto names = choice_names(E{});
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) return static_cast<E>(i);
    known += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  throw std::invalid_argument("'" + name + "' is none of " + known);
}

template <class T>
concept HasFields = requires { T::fields([](auto&&...) {}); };

template <HasFields T>
void check_fields(const T& config, const std::string& where = "");

template <class V>
void check_value(const std::string& name, const V& value, const Bounds& bounds, const Bounds& items) {
  const auto check = [&](double number, const char* what) {
    if (std::isfinite(number) && bounds.hold(number)) return;
    std::ostringstream sentence;
    sentence << name << what << number << "; it must be ";
    const char* link = "";
    if (std::isfinite(bounds.low)) sentence << (bounds.above ? "above " : "at least ") << bounds.low, link = " and ";
    if (std::isfinite(bounds.high)) sentence << link << (bounds.below ? "below " : "at most ") << bounds.high;
    if (!std::isfinite(number)) sentence << " a number";
    throw std::invalid_argument(sentence.str());
  };
  if constexpr (HasFields<V>) {
    check_fields(value, name + ".");
  } else if constexpr (std::is_same_v<V, std::string>) {
    check(static_cast<double>(value.size()), " has a length of ");
  } else if constexpr (std::is_arithmetic_v<V>) {
    check(static_cast<double>(value), " is ");
  } else if constexpr (requires { value.has_value(); }) {
    if (value) check_value(name, *value, bounds, items);
  } else if constexpr (requires { value.size(); }) {
    check(static_cast<double>(value.size()), " has a length of ");
    for (std::size_t i = 0; i < value.size(); ++i)
      check_value(name + "[" + std::to_string(i) + "]", value[i], items, {});
  }
}

// Throws std::invalid_argument with one sentence where a field is out of its bounds.
template <HasFields T>
void check_fields(const T& config, const std::string& where) {
  T::fields([&](const char* name, auto member, const Bounds& bounds = {}, const Bounds& items = {}) {
    check_value(where + name, config.*member, bounds, items);
  });
}

}  // namespace slipstream
