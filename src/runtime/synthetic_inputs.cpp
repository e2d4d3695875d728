// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/math.h"
#include "base/numbers.h"
#include "formats/synthetic.h"
#include "motet/verify.h"
#include "runtime/random.h"

namespace motet {
namespace {

/// tokens * width as a size, or an Error: nothing is allocated from an unchecked product.
std::size_t elements_of(std::int64_t tokens, std::int64_t width) {
  std::int64_t count = 0;
  if (tokens < 0 || width < 0 || !checked_mul(tokens, width, &count) || count > (std::int64_t{1} << 40))
    throw Error(ErrorCode::invalid_argument, "synthetic inputs need tokens and width >= 0 with at most 2^40 elements, but got " +
                                                 std::to_string(tokens) + " x " + std::to_string(width) + "; ask for fewer");
  return static_cast<std::size_t>(count);
}

/// How likely each expert is, up to a factor: equal, or 1 / (1 + rank) in a seeded order of the experts.
std::vector<double> popularity(std::int64_t experts, RoutingPattern pattern, Random& random) {
  std::vector<double> values(static_cast<std::size_t>(experts), 1.0);
  if (pattern == RoutingPattern::uniform) return values;
  for (std::size_t rank = 0; rank < values.size(); ++rank) values[rank] = 1.0 / static_cast<double>(rank + 1);
  for (std::size_t i = values.size(); i > 1; --i)
    std::swap(values[i - 1], values[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  return values;
}

}  // namespace

std::shared_ptr<const LayerWeights> synthetic_weights(const LayerSpec& spec, std::uint64_t seed) {
  return make_synthetic_weights(spec, seed);
}

std::vector<float> synthetic_hidden_states(std::int64_t tokens, std::int64_t hidden, std::uint64_t seed) {
  std::vector<float> values(elements_of(tokens, hidden));
  Random random(seed);
  for (float& value : values) value = bf16_to_f32(f32_to_bf16(static_cast<float>(random.normal())));
  return values;
}

void synthetic_routing(const LayerSpec& spec, std::int64_t tokens, RoutingPattern pattern, std::uint64_t seed,
                       std::vector<std::int32_t>& index, std::vector<float>& weights) {
  const std::int64_t choices = spec.experts + spec.router.zero_experts;
  if (spec.top_k < 1 || spec.top_k > choices)
    throw Error(ErrorCode::invalid_argument, "a token chooses 1 to experts distinct experts, but top_k is " +
                                                 std::to_string(spec.top_k) + " of " + std::to_string(choices) +
                                                 "; give a smaller top_k");
  index.assign(elements_of(tokens, spec.top_k), 0);
  weights.assign(index.size(), 0);
  Random random(seed);
  const std::vector<double> likely = popularity(choices, pattern, random);
  const auto top_k = static_cast<std::ptrdiff_t>(spec.top_k);
  std::vector<std::pair<double, std::int32_t>> keys(static_cast<std::size_t>(choices));
  for (std::int64_t token = 0; token < tokens; ++token) {
    // The k smallest of exponential waiting times are a draw without replacement (Efraimidis, Spirakis 2006).
    for (std::size_t e = 0; e < keys.size(); ++e) keys[e] = {-std::log(random.uniform()) / likely[e], static_cast<std::int32_t>(e)};
    std::partial_sort(keys.begin(), keys.begin() + top_k, keys.end());
    double sum = 0;
    std::vector<double> shares(static_cast<std::size_t>(spec.top_k));
    for (double& share : shares) sum += share = 0.5 + random.uniform();
    for (std::ptrdiff_t k = 0; k < top_k; ++k) {
      const auto choice = static_cast<std::size_t>(token * spec.top_k + k);
      index[choice] = keys[static_cast<std::size_t>(k)].second;
      weights[choice] = static_cast<float>(shares[static_cast<std::size_t>(k)] / sum);
    }
  }
}

}  // namespace motet
