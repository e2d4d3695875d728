// SPDX-License-Identifier: Apache-2.0
// config.json of a checkpoint. A key is looked for in text_config, then at the top level; null counts as absent. Every value of
// the wrong JSON type is an Error(bad_input) that names file and key.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_fwd.h"

namespace motet {

/// Most layers that a config may declare; published models have a few hundred at most.
inline constexpr std::int64_t kMaxLayers = 4096;

/// Spellings of one key; the first that is present counts.
using Keys = std::initializer_list<std::string_view>;

/// What quantization_config (or hf_quant_config.json) says. Hints only: the tensors decide the format.
struct QuantizationHints {
  std::string where;                   ///< file and key, "" = none
  std::string method, algorithm;       ///< quant_method; quant_algo (modelopt) or format (compressed-tensors)
  std::optional<std::pair<std::int64_t, std::int64_t>> block;   ///< rows and columns of an fp8 scale block
  std::vector<std::int64_t> float4_groups;                      ///< group sizes declared for 4-bit floats
};

class Config {
 public:
  /// `quantization_text` is hf_quant_config.json, "" when there is none.
  Config(std::string_view text, std::string_view quantization_text);
  ~Config();

  const Json* find(Keys keys) const;                             ///< null when absent
  bool has(Keys keys) const { return find(keys) != nullptr; }
  std::int64_t integer(Keys keys) const;                         ///< required, >= 0
  std::int64_t integer_or(Keys keys, std::int64_t absent) const; ///< >= 0
  double real(Keys keys) const;                                  ///< required, finite
  double real_or(Keys keys, double absent) const;
  bool boolean_or(Keys keys, bool absent) const;
  std::string text(Keys keys) const;                             ///< required
  std::string text_or(Keys keys, std::string_view absent) const;
  std::optional<std::vector<std::int64_t>> integers(Keys keys) const;
  std::optional<std::vector<std::string>> texts(Keys keys) const;

  /// model_type of text_config and of the top level, in this order; empty ones left out.
  std::vector<std::string> model_types() const;
  const QuantizationHints& quantization() const { return quantization_; }

 private:
  const std::unique_ptr<const Json> root_;
  const Json* text_ = nullptr;         // text_config, or null
  QuantizationHints quantization_;

  const Json& required(Keys keys) const;

 public:
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;
};

}  // namespace motet
