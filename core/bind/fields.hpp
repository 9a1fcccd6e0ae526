// Config structs for Python: one attribute per field of `T::fields`. Choices are their names.
#pragma once

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.hpp"
#include "slipstream/fields.hpp"

namespace slipstream {

template <HasFields T>
nb::class_<T> bind_fields(nb::module_& m, const char* class_name, const char* text = "") {
  nb::class_<T> bound(m, class_name, text);
  bound.def(nb::init<>());
  T::fields([&]<class V, class Owner>(const char* name, V Owner::* member, auto&&...) {
    if constexpr (Choice<V>) {
      bound.def_prop_rw(
          name, [member](const T& self) { return choice_name(self.*member); },
          [member](T& self, const std::string& value) { self.*member = choice_named<V>(value); });
    } else if constexpr (requires { requires Choice<typename V::value_type>; }) {
      using E = typename V::value_type;
      bound.def_prop_rw(
          name,
          [member](const T& self) { return self.*member ? std::optional(choice_name(*(self.*member))) : std::nullopt; },
          [member](T& self, const std::optional<std::string>& value) {
            self.*member = value ? std::optional(choice_named<E>(*value)) : std::nullopt;
          },
          nb::arg("value").none());
    } else if constexpr (requires { requires HasFields<typename V::value_type> && !requires(V v) { v.size(); }; }) {
      using Part = typename V::value_type;  // by pointer: GCC 12 warns of moving optional structs
      bound.def_prop_rw(
          name, [member](T& self) -> Part* { return self.*member ? &*(self.*member) : nullptr; },
          [member](T& self, const Part* value) { self.*member = value ? std::optional(*value) : std::nullopt; },
          nb::arg("value").none(), nb::rv_policy::reference_internal);
    } else {
      bound.def_rw(name, member);
    }
  });
  return bound;
}

}  // namespace slipstream
