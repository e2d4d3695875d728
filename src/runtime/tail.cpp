// SPDX-License-Identifier: Apache-2.0
#include "runtime/tail.h"

#include <cmath>

#include "base/check.h"
#include "runtime/rows.h"

namespace motet {
namespace {

/// RMS norm over the row: y = fp32(fp32(x * r) * w), r = 1 / sqrt(mean(x^2) + epsilon), all in fp32, squares summed i ascending.
void normalise(float* row, std::int64_t width, const float* weight, float epsilon) noexcept {
  float squares = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    const float square = row[i] * row[i];
    squares = squares + square;
  }
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
  for (std::int64_t i = 0; i < width; ++i) {
    const float unit = row[i] * factor;
    row[i] = unit * weight[i];
  }
}

void add_shared(const TailArgs& args, std::int64_t token, float* row) noexcept {
  const float* shared = args.shared + token * args.width;
  if (args.shared_gate == nullptr) {
    for (std::int64_t i = 0; i < args.width; ++i) row[i] = row[i] + shared[i];
    return;
  }
  const float gate = shared_gate_value(args.shared_gate, args.hidden_states, token);
  for (std::int64_t i = 0; i < args.width; ++i) {
    const float gated = gate * shared[i];
    row[i] = row[i] + gated;
  }
}

/// Identity experts add w * x, k ascending; dropped ones add nothing.
void add_zero_experts(const TailArgs& args, std::int64_t token, float* row) noexcept {
  if (args.zero_expert_kind != ZeroExpertKind::identity) return;
  for (std::int64_t k = 0; k < args.top_k; ++k) {
    const std::int64_t choice = token * args.top_k + k;
    if (args.expert[choice] < args.experts) continue;
    const float weight = args.weight[choice];
    visit_row(args.hidden_states, token, [&](std::int64_t i, float x) {
      const float term = weight * x;
      row[i] = row[i] + term;
    });
  }
}

void run_step(const TailArgs& args, TailOp op, std::int64_t token, float* row) noexcept {
  switch (op) {
    case TailOp::truncate:
      return;
    case TailOp::scale:
      for (std::int64_t i = 0; i < args.width; ++i) row[i] = row[i] * args.routed_scale;
      return;
    case TailOp::latent_norm:
      return normalise(row, args.width, args.norm_weight, args.norm_epsilon);
    case TailOp::add_shared:
      return add_shared(args, token, row);
    case TailOp::add_zero_experts:
      return add_zero_experts(args, token, row);
    case TailOp::round:
      return store_row(row, args.output, token);
    case TailOp::latent_out:
    case TailOp::reduce:
      break;
  }
  MOTET_CHECK(false, "tail step %d is not token-wise", static_cast<int>(op));
}

}  // namespace

float shared_gate_value(const float* gate, const ConstMatrix& hidden_states, std::int64_t token) noexcept {
  constexpr std::int64_t kLanes = 16;
  float partial[kLanes] = {};
  visit_row(hidden_states, token, [&](std::int64_t i, float x) {
    const float term = gate[i] * x;
    partial[i % kLanes] = partial[i % kLanes] + term;
  });
  float sum = 0;
  for (const float lane : partial) sum = sum + lane;
  return 1.0f / (1.0f + std::exp(-sum));
}

void run_tail_steps(const TailArgs& args, std::span<const TailStep> steps, std::int64_t begin, std::int64_t end) noexcept {
  for (std::int64_t token = begin; token < end; ++token)
    for (const TailStep& step : steps) run_step(args, step.op, token, args.value + token * args.width);
}

}  // namespace motet
