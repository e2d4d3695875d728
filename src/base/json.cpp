// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "base/json_reader.h"

namespace motet {
namespace {

/// Recursion is bounded by JsonReader::kMaxDepth.
Json read_value(JsonReader& reader) {
  switch (reader.peek()) {
    case JsonReader::Kind::object: {
      Json::object_t object;
      reader.open_object();
      while (const auto key = reader.next_key()) {
        const std::size_t before = object.size();
        const auto member = object.emplace_hint(object.end(), std::string(*key), nullptr);  // published headers are often sorted
        if (object.size() == before) reader.fail_duplicate(member->first);
        member->second = read_value(reader);
      }
      return Json(std::move(object));
    }
    case JsonReader::Kind::array: {
      Json::array_t array;
      reader.open_array();
      while (reader.next_item()) array.push_back(read_value(reader));
      return Json(std::move(array));
    }
    case JsonReader::Kind::string:
      return Json(std::string(reader.read_string()));
    case JsonReader::Kind::number: {
      const JsonReader::Number number = reader.read_number();
      if (number.kind == JsonReader::Number::real) return Json(number.real_value);
      if (number.kind == JsonReader::Number::unsigned_integer) return Json(number.natural);
      if (number.integer < 0) return Json(number.integer);
      return Json(static_cast<std::uint64_t>(number.integer));  // as nlohmann's own parser types it
    }
    case JsonReader::Kind::boolean:
      return Json(reader.read_bool());
    case JsonReader::Kind::null:
      reader.read_null();
      return Json(nullptr);
  }
  return Json();
}

}  // namespace

Json parse_json(std::string_view text, std::string_view what) {
  JsonReader reader(text, what);
  Json value = read_value(reader);
  reader.finish();
  return value;
}

std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_object() || value.size() != 1) return std::nullopt;
  const auto member = value.find("__float__");
  if (member == value.end() || !member->is_string()) return std::nullopt;
  const std::string& spelled = member->get_ref<const std::string&>();
  if (spelled == "Infinity" || spelled == "-Infinity" || spelled == "NaN") {
    JsonReader reader(spelled, "__float__");
    return reader.read_number().real_value;
  }
  double parsed = 0;
  const char* const end = spelled.data() + spelled.size();
  const auto [stop, error] = std::from_chars(spelled.data(), end, parsed);
  if (error != std::errc() || stop != end || !std::isfinite(parsed)) return std::nullopt;
  return parsed;
}

}  // namespace motet
