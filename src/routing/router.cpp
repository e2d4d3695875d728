// SPDX-License-Identifier: Apache-2.0
#include "routing/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace motet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// The one order of routing: larger value first, NaN after every number, then the lower index.
bool ranks_before(float a, std::int64_t a_index, float b, std::int64_t b_index) noexcept {
  if (a > b) return true;
  if (a < b) return false;
  const bool a_nan = std::isnan(a), b_nan = std::isnan(b);
  return a_nan == b_nan ? a_index < b_index : b_nan;
}

float largest_number(const float* value, std::int64_t count) noexcept {
  float best = -kInfinity;
  for (std::int64_t i = 0; i < count; ++i) best = value[i] > best ? value[i] : best;
  return best;
}

/// exp(logit - max), and its limit 1 where both are the same infinity.
float exp_below(float logit, float max) noexcept { return logit == max ? 1.0f : std::exp(logit - max); }

float sigmoid(float logit) noexcept {
  if (!(logit < 0)) return 1.0f / (1.0f + std::exp(-logit));
  const float e = std::exp(logit);  // 1 / (1 + exp(-l)) would overflow to 0 while the result is still a number
  return e / (1.0f + e);
}

float sqrt_softplus(float logit) noexcept { return std::sqrt(std::max(logit, 0.0f) + std::log1p(std::exp(-std::fabs(logit)))); }

/// Softmax whose sum runs over the numbers. Returns whether a NaN was left out of it.
bool softmax_of_numbers(const float* logit, std::int64_t count, float* score) noexcept {
  const float max = largest_number(logit, count);
  float sum = 0;
  bool has_nan = false;
  for (std::int64_t i = 0; i < count; ++i) {
    score[i] = exp_below(logit[i], max);
    if (std::isnan(score[i]))
      has_nan = true;
    else
      sum += score[i];
  }
  for (std::int64_t i = 0; i < count; ++i) score[i] /= sum;
  return has_nan;
}

/// What one token's choice is made from. Arrays are [count].
struct Scores {
  const float* logit = nullptr;  ///< soft cap applied
  const float* score = nullptr;  ///< what weights are made of
  const float* key = nullptr;    ///< what experts are chosen by
  std::int64_t count = 0;
  bool nan_in_softmax = false;  ///< a NaN entered the sum that every score was divided by
};

/// Scratch: four arrays of `count` floats.
float* scratch_array(const RouteArgs& args, int which) noexcept {
  return args.scratch + which * (args.experts + args.spec->zero_experts);
}

void cap_logits(const RouteArgs& args, Scores& scores) noexcept {
  scores.logit = args.logits;
  if (args.spec->soft_cap == 0) return;
  const float cap = static_cast<float>(args.spec->soft_cap);
  float* capped = scratch_array(args, 0);
  for (std::int64_t i = 0; i < scores.count; ++i) capped[i] = cap * std::tanh(args.logits[i] / cap);
  scores.logit = capped;
}

void score_logits(const RouteArgs& args, Scores& scores) noexcept {
  float* score = scratch_array(args, 1);
  scores.score = score;
  switch (args.spec->score) {
    case RouterScore::logits:
      scores.score = scores.logit;
      break;
    case RouterScore::softmax:
      scores.nan_in_softmax = softmax_of_numbers(scores.logit, scores.count, score);
      break;
    case RouterScore::sigmoid:
      std::transform(scores.logit, scores.logit + scores.count, score, sigmoid);
      break;
    case RouterScore::sqrt_softplus:
      std::transform(scores.logit, scores.logit + scores.count, score, sqrt_softplus);
      break;
  }
}

/// Every score rises with its logit, so without a bias the logits are the key: they still differ where fp32 scores saturate.
void choose_keys(const RouteArgs& args, Scores& scores) noexcept {
  scores.key = scores.logit;
  if (!args.spec->selection_bias) return;
  MOTET_DCHECK(args.selection_bias != nullptr);
  float* key = scratch_array(args, 2);
  for (std::int64_t i = 0; i < scores.count; ++i) key[i] = scores.score[i] + args.selection_bias[i];
  scores.key = key;
}

/// The largest key of a group, or the sum of the (biased) scores of its first two by key; NaN when those hold a NaN.
float score_group(const RouterSpec& spec, const Scores& scores, std::int64_t begin, std::int64_t end) noexcept {
  std::int64_t first = begin, second = -1;
  for (std::int64_t i = begin + 1; i < end; ++i) {
    if (ranks_before(scores.key[i], i, scores.key[first], first)) {
      second = first;
      first = i;
    } else if (second < 0 || ranks_before(scores.key[i], i, scores.key[second], second)) {
      second = i;
    }
  }
  if (spec.group_score == GroupScore::max) return scores.key[first];
  const float* value = spec.selection_bias ? scores.key : scores.score;
  return second < 0 ? value[first] : value[first] + value[second];
}

/// Masks the experts of dropped groups with -inf. Zero experts are in no group.
void drop_groups(const RouteArgs& args, Scores& scores) noexcept {
  const std::int64_t groups = args.spec->groups, kept = args.spec->groups_kept;
  if (groups <= 1 || kept >= groups) return;
  MOTET_DCHECK(kept >= 1 && args.experts % groups == 0);
  const std::int64_t size = args.experts / groups;
  float* group = scratch_array(args, 3);
  for (std::int64_t g = 0; g < groups; ++g) group[g] = score_group(*args.spec, scores, g * size, (g + 1) * size);
  float* key = scratch_array(args, 2);
  if (scores.key != key) std::copy_n(scores.key, scores.count, key);
  for (std::int64_t g = 0; g < groups; ++g) {
    std::int64_t ahead = 0;
    for (std::int64_t other = 0; other < groups; ++other) ahead += ranks_before(group[other], other, group[g], g);
    if (ahead >= kept) std::fill_n(key + g * size, size, -kInfinity);
  }
  scores.key = key;
}

/// The first top_k by rank, best first: a heap of the best so far lies in `index`, its front ranks last.
void select_top_k(const Scores& scores, std::int64_t top_k, std::int32_t* index) noexcept {
  const float* key = scores.key;
  const auto before = [key](std::int32_t a, std::int32_t b) { return ranks_before(key[a], a, key[b], b); };
  std::iota(index, index + top_k, 0);
  std::make_heap(index, index + top_k, before);
  for (std::int32_t i = static_cast<std::int32_t>(top_k); i < scores.count; ++i) {
    if (!before(i, index[0])) continue;
    std::pop_heap(index, index + top_k, before);
    index[top_k - 1] = i;
    std::push_heap(index, index + top_k, before);
  }
  std::sort_heap(index, index + top_k, before);
}

/// Sparsemixer-2, inference form. Each pass takes the largest logit m of those left; its weight is its softmax among those left
/// with (m - l) / max(|l|, m) <= 2 * jitter. The clamp uses the signed m.
void sparsemix(const RouteArgs& args, const Scores& scores) noexcept {
  const float threshold = static_cast<float>(2 * args.spec->jitter);
  float* removed = scratch_array(args, 2);
  std::fill_n(removed, scores.count, 0.0f);
  for (std::int64_t pass = 0; pass < args.top_k; ++pass) {
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < scores.count; ++i) {
      if (removed[i] == 0 && (best < 0 || ranks_before(scores.logit[i], i, scores.logit[best], best))) best = i;
    }
    const float max = scores.logit[best];
    float sum = 0;
    for (std::int64_t i = 0; i < scores.count; ++i) {
      const float logit = scores.logit[i];
      const bool dropped = (max - logit) / std::max(std::fabs(logit), max) > threshold;
      if (removed[i] == 0 && !dropped) sum += exp_below(logit, max);
    }
    removed[best] = 1;
    args.index[pass] = static_cast<std::int32_t>(best);
    args.weight[pass] = exp_below(max, max) / sum;
  }
}

void normalize_sum(const RouterSpec& spec, float* weight, std::int64_t top_k) noexcept {
  const float sum = std::accumulate(weight, weight + top_k, 0.0f) + static_cast<float>(spec.normalize_epsilon);
  const float floor = static_cast<float>(spec.normalize_floor);
  const float divisor = sum < floor ? floor : sum;  // a NaN sum stays
  for (std::int64_t k = 0; k < top_k; ++k) weight[k] /= divisor;
}

void normalize_softmax(const Scores& scores, const std::int32_t* index, float* weight, std::int64_t top_k) noexcept {
  for (std::int64_t k = 0; k < top_k; ++k) weight[k] = scores.logit[index[k]];
  const float max = largest_number(weight, top_k);
  float sum = 0;
  for (std::int64_t k = 0; k < top_k; ++k) sum += weight[k] = exp_below(weight[k], max);
  for (std::int64_t k = 0; k < top_k; ++k) weight[k] /= sum;
}

/// p / (sum |p|^q)^(1/q), relative to the largest so that no power underflows.
void normalize_p_norm(const RouterSpec& spec, float* weight, std::int64_t top_k) noexcept {
  const float power = static_cast<float>(spec.normalize_power);
  const float max = largest_number(weight, top_k);
  float sum = 0;
  for (std::int64_t k = 0; k < top_k; ++k) {
    weight[k] /= max;
    sum += std::pow(std::fabs(weight[k]), power);
  }
  const float norm = std::pow(sum, 1.0f / power);
  for (std::int64_t k = 0; k < top_k; ++k) weight[k] /= norm;
}

void gather_scores(const RouteArgs& args, const Scores& scores) noexcept {
  for (std::int64_t k = 0; k < args.top_k; ++k) {
    const std::int32_t i = args.index[k];
    args.weight[k] = args.spec->sigmoid_weight ? sigmoid(scores.logit[i]) : scores.nan_in_softmax ? kNaN : scores.score[i];
  }
}

/// Normalise, then the scale, then the expert's own scale: each once.
void finish_weights(const RouteArgs& args, const Scores& scores) noexcept {
  const RouterSpec& spec = *args.spec;
  switch (spec.normalize) {
    case RouterNormalize::none:
      break;
    case RouterNormalize::sum:
      normalize_sum(spec, args.weight, args.top_k);
      break;
    case RouterNormalize::softmax:
      normalize_softmax(scores, args.index, args.weight, args.top_k);
      break;
    case RouterNormalize::p_norm:
      normalize_p_norm(spec, args.weight, args.top_k);
      break;
  }
  const float scale = spec.scale_site == ScaleSite::weights ? static_cast<float>(spec.scale) : 1.0f;
  for (std::int64_t k = 0; k < args.top_k; ++k) {
    args.weight[k] *= scale;
    if (spec.per_expert_scale && args.index[k] < args.experts) args.weight[k] *= args.per_expert_scale[args.index[k]];
  }
}

}  // namespace

std::int64_t route_scratch_floats(std::int64_t experts_and_zero) noexcept { return 4 * experts_and_zero; }

void route_token(const RouteArgs& args) noexcept {
  const RouterSpec& spec = *args.spec;
  Scores scores;
  scores.count = args.experts + spec.zero_experts;
  MOTET_DCHECK(args.top_k >= 1 && args.top_k <= scores.count, "top_k %lld of %lld", static_cast<long long>(args.top_k),
               static_cast<long long>(scores.count));
  cap_logits(args, scores);
  switch (spec.selection) {
    case RouterSelection::top_k:
      score_logits(args, scores);
      choose_keys(args, scores);
      drop_groups(args, scores);
      select_top_k(scores, args.top_k, args.index);
      gather_scores(args, scores);
      break;
    case RouterSelection::hash:
      score_logits(args, scores);
      std::copy_n(args.hash_experts, args.top_k, args.index);
      gather_scores(args, scores);
      break;
    case RouterSelection::sparsemixer:
      sparsemix(args, scores);
      break;
  }
  finish_weights(args, scores);
}

}  // namespace motet
