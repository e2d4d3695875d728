// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "base/json.h"
#include "plan/fields.h"
#include "plan/names.h"

namespace motet {
namespace {

class JsonWriter {
 public:
  Json result = Json::object();

  template <class T>
  void operator()(const char* name, const T& value) {
    result[name] = json_of(value);
  }
  template <class T>
  void operator()(const char* name, const std::optional<T>& value) {
    if (value) result[name] = json_of(*value);
  }

 private:
  template <class T>
  static Json json_of(const std::vector<T>& values) {
    Json list = Json::array();
    for (const T& value : values) list.push_back(json_of(value));
    return list;
  }
  template <class T>
  static Json json_of(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      return std::string(name_of(value));
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      return value;
    } else {
      JsonWriter writer;
      visit_fields(writer, value);
      return std::move(writer.result);
    }
  }
};

}  // namespace

std::string Plan::to_json(int indent) const {
  JsonWriter writer;
  visit_fields(writer, *this);
  writer.result["schema"] = "motet.plan/1";
  return writer.result.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace motet
