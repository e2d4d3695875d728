// SPDX-License-Identifier: Apache-2.0
#include "runtime/weights_read.h"

#include <algorithm>
#include <functional>
#include <string>

#include "base/dtype.h"
#include "base/math.h"
#include "formats/format.h"

namespace motet {
namespace {

double bits_of_format(const std::string& name) {
  const Format* format = find_format(name);
  return format == nullptr ? 0 : format->facts.bits_per_value;
}

double elements_of(const WeightView& view) { return static_cast<double>(view.rows) * static_cast<double>(view.cols); }

std::int64_t bias_bytes(const BiasView& view) { return view.data == nullptr ? 0 : view.count * bytes_of(view.dtype); }

std::int64_t expert_bytes(const ExpertView& expert, double gate_up_bits, double down_bits) {
  return matrix_bytes(expert.gate, gate_up_bits) + matrix_bytes(expert.up, gate_up_bits) + matrix_bytes(expert.down, down_bits) +
         bias_bytes(expert.gate_bias) + bias_bytes(expert.up_bias) + bias_bytes(expert.down_bias);
}

double expert_flops(const ExpertView& expert) {
  return 2 * ((expert.gate.codes == nullptr ? 0 : elements_of(expert.gate)) + elements_of(expert.up) + elements_of(expert.down));
}

void add_spans(const ExpertView& expert, double gate_up_bits, double down_bits, std::vector<ByteSpan>& spans) {
  add_spans(expert.gate, gate_up_bits, spans);
  add_spans(expert.up, gate_up_bits, spans);
  add_spans(expert.down, down_bits, spans);
}

/// A vector that the spec calls for must be there with `count` elements; one that it does not call for must be absent.
void check_vector(const char* what, const BiasView& view, bool needed, std::int64_t count) {
  if (needed ? view.data != nullptr && view.count == count : view.data == nullptr) return;
  throw Error(ErrorCode::wrong_shape,
              std::string(what) + " must have " + std::to_string(needed ? count : 0) + " elements, but the weights have " +
                  std::to_string(view.data == nullptr ? 0 : view.count) + "; load the weights with the plan's spec");
}

}  // namespace

std::int64_t matrix_bytes(const WeightView& view, double bits_per_value) {
  if (view.codes == nullptr) return 0;
  const auto codes = static_cast<std::int64_t>(elements_of(view) * bits_per_value / 8);
  if (view.scales == nullptr) return codes;
  return codes + ceil_div(view.rows, view.block_rows) * ceil_div(view.cols, view.block_cols) * bytes_of(view.scale_dtype);
}

void add_spans(const WeightView& view, double bits_per_value, std::vector<ByteSpan>& spans) {
  if (view.codes == nullptr || view.rows == 0 || view.cols == 0) return;
  const std::int64_t last_row = (view.rows - 1) * view.row_stride;
  const auto bits = static_cast<std::int64_t>(bits_per_value);
  spans.push_back({view.codes, last_row + (view.col_stride == 0 ? ceil_div(view.cols * bits, 8)
                                                                : (view.cols - 1) * view.col_stride + ceil_div(bits, 8))});
  if (view.scales == nullptr) return;
  spans.push_back({view.scales, (ceil_div(view.rows, view.block_rows) - 1) * view.scale_row_stride +
                                    (ceil_div(view.cols, view.block_cols) - 1) * view.scale_col_stride +
                                    bytes_of(view.scale_dtype)});
}

std::vector<ByteSpan> joined(std::vector<ByteSpan> spans) {
  std::sort(spans.begin(), spans.end(), [](const ByteSpan& a, const ByteSpan& b) { return std::less<>()(a.data, b.data); });
  std::vector<ByteSpan> out;
  for (const ByteSpan& span : spans) {
    if (span.bytes <= 0) continue;
    if (out.empty() || std::less<>()(out.back().data + out.back().bytes, span.data)) {
      out.push_back(span);
    } else {
      out.back().bytes = std::max(out.back().bytes, span.data - out.back().data + span.bytes);
    }
  }
  return out;
}

std::vector<ByteSpan> spans_read(const LayerWeights& weights, const PartsRead& parts) {
  const LayerSpec& spec = weights.spec;
  std::vector<ByteSpan> spans;
  const double gate_up_bits = bits_of_format(spec.gate_up.format), down_bits = bits_of_format(spec.down.format);
  const bool packed = parts.packed.bytes > 0;
  if (packed) spans.push_back(parts.packed);
  for (std::size_t e = 0; e < weights.experts.size(); ++e)
    if (!packed && parts.expert_rows[e] > 0) add_spans(weights.experts[e], gate_up_bits, down_bits, spans);
  if (!packed && parts.shared)
    add_spans(weights.shared, bits_of_format(spec.shared.gate_up.format), bits_of_format(spec.shared.down.format), spans);
  if (parts.router) add_spans(weights.router, bits_of(spec.router.weight_dtype), spans);
  if (parts.latent_in) add_spans(weights.latent_in, bits_of_format(spec.latent_in.format), spans);
  if (parts.latent_out) add_spans(weights.latent_out, bits_of_format(spec.latent_out.format), spans);
  return joined(std::move(spans));
}

ReadCosts read_costs_of(const LayerWeights& weights) {
  const LayerSpec& spec = weights.spec;
  const double gate_up_bits = bits_of_format(spec.gate_up.format), down_bits = bits_of_format(spec.down.format);
  ReadCosts costs;
  for (const ExpertView& expert : weights.experts) costs.expert_bytes.push_back(expert_bytes(expert, gate_up_bits, down_bits));
  if (!weights.experts.empty()) costs.expert_flops = expert_flops(weights.experts.front());
  if (spec.shared.intermediate > 0) {
    costs.shared_bytes =
        expert_bytes(weights.shared, bits_of_format(spec.shared.gate_up.format), bits_of_format(spec.shared.down.format)) +
        bias_bytes(weights.shared_gate);
    costs.shared_flops = expert_flops(weights.shared) + (spec.shared.gate ? 2 * static_cast<double>(spec.hidden) : 0);
  }
  if (weights.router.codes != nullptr) {
    costs.router_bytes = matrix_bytes(weights.router, bits_of(spec.router.weight_dtype)) + bias_bytes(weights.router_bias) +
                         bias_bytes(weights.selection_bias);
    costs.router_flops = 2 * elements_of(weights.router);
  }
  if (spec.latent > 0) {
    costs.latent_in_bytes = matrix_bytes(weights.latent_in, bits_of_format(spec.latent_in.format));
    costs.latent_out_bytes =
        matrix_bytes(weights.latent_out, bits_of_format(spec.latent_out.format)) + bias_bytes(weights.latent_norm);
    costs.latent_flops = 2 * elements_of(weights.latent_in);
  }
  return costs;
}

std::vector<float> floats_of(const BiasView& view) {
  std::vector<float> values;
  if (view.data == nullptr) return values;
  values.reserve(static_cast<std::size_t>(view.count));
  for (std::int64_t i = 0; i < view.count; ++i)
    values.push_back(static_cast<float>(load_as_f64(view.dtype, view.data + i * view.stride)));
  return values;
}

void check_vectors(const LayerSpec& spec, const LayerWeights& weights) {
  const std::int64_t choices = spec.experts + spec.router.zero_experts;
  check_vector("the shared gate", weights.shared_gate, spec.shared.intermediate > 0 && spec.shared.gate, spec.hidden);
  check_vector("the router bias", weights.router_bias, spec.router.logit_bias, choices);
  check_vector("the selection bias", weights.selection_bias, spec.router.selection_bias, choices);
  check_vector("the per-expert scale", weights.per_expert_scale, spec.router.per_expert_scale, spec.experts);
  check_vector("the latent norm", weights.latent_norm, spec.latent > 0 && spec.latent_norm, spec.latent);
}

}  // namespace motet
