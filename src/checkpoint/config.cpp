// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/config.h"

#include <cmath>

#include "base/json.h"
#include "checkpoint/text.h"

namespace motet {
namespace {

std::string spelled(Keys keys) {
  std::string out;
  for (const std::string_view key : keys) out += (out.empty() ? "" : " or ") + quote(key);
  return out;
}

[[noreturn]] void wrong_type(const std::string& where, const std::string& key, const char* wanted, const Json& given) {
  fail(ErrorCode::bad_input, where, ": ", key, " must be ", wanted, " but is ", quote(given.dump(-1, ' ', true, Json::error_handler_t::replace)),
       "; take the config.json that belongs to the weights");
}

std::int64_t as_integer(const std::string& where, const std::string& key, const Json& value) {
  if (!value.is_number_integer() || (value.is_number_unsigned() ? value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX) : value.get<std::int64_t>() < 0)) {
    wrong_type(where, key, "a whole number that is not negative and fits 64 bits", value);
  }
  return value.get<std::int64_t>();
}

const Json* member(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_member(const Json& object, std::string_view key, const std::string& where) {
  const Json* const value = member(object, key);
  if (!value) return "";
  if (!value->is_string()) wrong_type(where, quote(key), "text", *value);
  return value->get<std::string>();
}

std::pair<std::int64_t, std::int64_t> block_of(const Json& value, const std::string& where, const std::string& key) {
  if (!value.is_array() || value.size() != 2) wrong_type(where, key, "two whole numbers", value);
  const std::pair<std::int64_t, std::int64_t> block{as_integer(where, key, value[0]), as_integer(where, key, value[1])};
  if (block.first < 1 || block.second < 1) wrong_type(where, key, "two numbers above 0", value);
  return block;
}

/// One entry of compressed-tensors' (and modelopt's) config_groups.
void read_group(const Json& group, QuantizationHints& hints) {
  if (!group.is_object()) wrong_type(hints.where, "an entry of 'config_groups'", "an object", group);
  const Json* const weights = member(group, "weights");
  if (!weights) return;
  if (!weights->is_object()) wrong_type(hints.where, "'weights'", "an object", *weights);
  if (const Json* const block = member(*weights, "block_structure"); block && block->is_array()) {
    hints.block = block_of(*block, hints.where, "'block_structure'");
  }
  const Json* const size = member(*weights, "group_size");
  const Json* const bits = member(*weights, "num_bits");
  if (!size || !bits || as_integer(hints.where, "'num_bits'", *bits) != 4 || text_member(*weights, "type", hints.where) != "float") return;
  hints.float4_groups.push_back(as_integer(hints.where, "'group_size'", *size));
}

QuantizationHints read_hints(const Json& object, std::string where) {
  QuantizationHints hints;
  hints.where = std::move(where);
  if (!object.is_object()) wrong_type(hints.where, "the value", "an object", object);
  hints.method = text_member(object, "quant_method", hints.where);
  hints.algorithm = text_member(object, "quant_algo", hints.where);
  if (hints.algorithm.empty()) hints.algorithm = text_member(object, "format", hints.where);
  if (const Json* const block = member(object, "weight_block_size")) hints.block = block_of(*block, hints.where, "'weight_block_size'");
  const Json* const size = member(object, "group_size");
  if (size && hints.algorithm.find("FP4") != std::string::npos) hints.float4_groups.push_back(as_integer(hints.where, "'group_size'", *size));
  if (const Json* const groups = member(object, "config_groups")) {
    if (!groups->is_object()) wrong_type(hints.where, "'config_groups'", "an object", *groups);
    for (const auto& group : *groups) read_group(group, hints);
  }
  return hints;
}

}  // namespace

Config::Config(std::string_view text, std::string_view quantization_text) : root_(std::make_unique<Json>(parse_json(text, "config.json"))) {
  if (!root_->is_object()) wrong_type("config.json", "the file", "an object", *root_);
  text_ = member(*root_, "text_config");
  if (text_ && !text_->is_object()) wrong_type("config.json", "'text_config'", "an object", *text_);
  if (const Json* const hints = find({"quantization_config"})) {
    quantization_ = read_hints(*hints, "config.json: 'quantization_config'");
  } else if (!quantization_text.empty()) {
    const Json file = parse_json(quantization_text, "hf_quant_config.json");
    const Json* const hint = file.is_object() ? member(file, "quantization") : nullptr;
    if (hint) quantization_ = read_hints(*hint, "hf_quant_config.json: 'quantization'");
  }
}

Config::~Config() = default;

const Json* Config::find(Keys keys) const {
  for (const Json* const object : {text_, root_.get()}) {
    if (!object) continue;
    for (const std::string_view key : keys) {
      if (const Json* const value = member(*object, key)) return value;
    }
  }
  return nullptr;
}

const Json& Config::required(Keys keys) const {
  const Json* const value = find(keys);
  if (!value) fail(ErrorCode::bad_input, "config.json: ", spelled(keys), " is missing and this family needs it: take the config.json that belongs to the weights");
  return *value;
}

std::int64_t Config::integer(Keys keys) const { return as_integer("config.json", spelled(keys), required(keys)); }

std::int64_t Config::integer_or(Keys keys, std::int64_t absent) const { return has(keys) ? integer(keys) : absent; }

double Config::real(Keys keys) const {
  const Json& value = required(keys);
  const std::optional<double> number = number_of(value);
  if (!number || !std::isfinite(*number)) wrong_type("config.json", spelled(keys), "a finite number", value);
  return *number;
}

double Config::real_or(Keys keys, double absent) const { return has(keys) ? real(keys) : absent; }

bool Config::boolean_or(Keys keys, bool absent) const {
  const Json* const value = find(keys);
  if (!value) return absent;
  if (!value->is_boolean()) wrong_type("config.json", spelled(keys), "true or false", *value);
  return value->get<bool>();
}

std::string Config::text(Keys keys) const {
  const Json& value = required(keys);
  if (!value.is_string()) wrong_type("config.json", spelled(keys), "text", value);
  return value.get<std::string>();
}

std::string Config::text_or(Keys keys, std::string_view absent) const { return has(keys) ? text(keys) : std::string(absent); }

namespace {
// Families read such a list once per layer: a bound on both keeps that quick for any file.
void check_length(const std::string& key, const Json& list) {
  if (list.size() > static_cast<std::size_t>(kMaxLayers))
    fail(ErrorCode::bad_input, "config.json: ", key, " must be a list of at most ", std::to_string(kMaxLayers), " entries, one per layer, but has ",
         std::to_string(list.size()), "; take the config.json that belongs to the weights");
}
}  // namespace

std::optional<std::vector<std::int64_t>> Config::integers(Keys keys) const {
  const Json* const value = find(keys);
  if (!value) return std::nullopt;
  if (!value->is_array()) wrong_type("config.json", spelled(keys), "a list of whole numbers", *value);
  check_length(spelled(keys), *value);
  std::vector<std::int64_t> out;
  for (const Json& item : *value) out.push_back(as_integer("config.json", spelled(keys), item));
  return out;
}

std::optional<std::vector<std::string>> Config::texts(Keys keys) const {
  const Json* const value = find(keys);
  if (!value) return std::nullopt;
  if (!value->is_array()) wrong_type("config.json", spelled(keys), "a list of texts", *value);
  check_length(spelled(keys), *value);
  std::vector<std::string> out;
  for (const Json& item : *value) {
    if (!item.is_string()) wrong_type("config.json", spelled(keys), "a list of texts", *value);
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<std::string> Config::model_types() const {
  std::vector<std::string> out;
  for (const Json* const object : {text_, root_.get()}) {
    if (!object) continue;
    if (std::string type = text_member(*object, "model_type", "config.json"); !type.empty()) out.push_back(std::move(type));
  }
  return out;
}

}  // namespace motet
