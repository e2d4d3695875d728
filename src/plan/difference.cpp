// SPDX-License-Identifier: Apache-2.0
#include "plan/difference.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/text.h"
#include "plan/fields.h"
#include "plan/fingerprint.h"
#include "plan/names.h"

namespace motet {
namespace {

/// Collects every leaf with its path. The count of a list is a leaf of its own, so that lists of two lengths differ there.
class Leaves {
 public:
  template <class T>
  void operator()(std::string_view name, const T& value) {
    const std::size_t outer = path_.size();
    path_ += path_.empty() ? "" : ".";
    path_ += name;
    write(value);
    path_.resize(outer);
  }
  std::vector<Leaf> list;

 private:
  void leaf(std::string text) { list.push_back({path_, std::move(text)}); }
  void write(const std::string& value) { leaf("'" + value + "'"); }
  void write(double value) { leaf(format_text("%.17g", value)); }
  void write(bool value) { leaf(value ? "true" : "false"); }
  template <class T>
  void write(const std::vector<T>& values) {
    leaf(std::to_string(values.size()) + " entries");
    const std::size_t outer = path_.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
      path_ += "[" + std::to_string(i) + "]";
      write(values[i]);
      path_.resize(outer);
    }
  }
  template <class T>
  void write(const std::optional<T>& value) {
    leaf(value ? "present" : "absent");
    if (value) write(*value);
  }
  template <class T>
  void write(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      leaf(std::string(name_of(value)));
    } else if constexpr (std::is_integral_v<T>) {
      leaf(std::to_string(value));
    } else {
      visit_fields(*this, value);
    }
  }

  std::string path_;
};

template <class T>
std::optional<Difference> first_differing_leaf(const T& first, const T& second) {
  Leaves a, b;
  visit_fields(a, first);
  visit_fields(b, second);
  for (std::size_t i = 0; i < std::min(a.list.size(), b.list.size()); ++i)
    if (a.list[i] != b.list[i]) return Difference{a.list[i].path, a.list[i].value, b.list[i].value};
  return std::nullopt;
}

}  // namespace

std::optional<Difference> first_difference(const LayerSpec& first, const LayerSpec& second) {
  if (first == second) return std::nullopt;
  return first_differing_leaf(first, second);
}

std::optional<Difference> first_difference(const Plan& first, const Plan& second) {
  if (first == second) return std::nullopt;
  Plan same = second;
  same.recipe.wished = first.recipe.wished;
  same.choices = first.choices;
  same.fingerprint = fingerprint_of(same);
  if (first == same) return std::nullopt;
  return first_differing_leaf(first, same);
}

std::vector<Leaf> agreed_leaves(const Plan& plan) {
  Leaves leaves;
  visit_agreed_fields(leaves, plan);
  return leaves.list;
}

}  // namespace motet
