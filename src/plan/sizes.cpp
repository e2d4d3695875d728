// SPDX-License-Identifier: Apache-2.0
#include "plan/sizes.h"

#include <algorithm>

#include "base/math.h"

namespace motet {
namespace {

void add(WeightSize& sum, const WeightSize& part, std::int64_t times = 1) {
  sum.bytes = std::min(sum.bytes + bounded_product({part.bytes, times}), kLargestSize + 1);
  sum.most_bytes = std::min(sum.most_bytes + bounded_product({part.most_bytes, times}), kLargestSize + 1);
  sum.parameters = std::min(sum.parameters + bounded_product({part.parameters, times}), kLargestSize + 1);
}

/// Blocks along one axis; a block of 0 is the whole extent.
std::int64_t blocks(std::int64_t extent, std::int64_t block) { return block == 0 ? 1 : ceil_div(extent, block); }

WeightSize codes_size(std::int64_t bytes, std::int64_t parameters) {
  return {.bytes = bytes, .most_bytes = bytes, .parameters = parameters};
}

WeightSize vector_size(std::int64_t count, DType usual = DType::bf16) {
  return {.bytes = bounded_product({count, bits_of(usual) / 8}), .most_bytes = bounded_product({count, 4})};
}

}  // namespace

std::int64_t bounded_product(std::initializer_list<std::int64_t> extents) noexcept {
  std::int64_t product = 1;
  for (const std::int64_t extent : extents) {
    if (extent == 0) return 0;
    if (!checked_mul(product, extent, &product) || product > kLargestSize) product = kLargestSize + 1;
  }
  return product;
}

WeightSize matrix_size(const Catalog& catalog, const ProjectionSpec& projection, std::int64_t rows, std::int64_t cols) noexcept {
  const FormatFacts* format = catalog.format(projection.format);
  WeightSize size;
  if (format == nullptr || rows == 0 || cols == 0) return size;
  add(size, codes_size(bounded_product({rows, ceil_div(cols, format->values_per_block), format->bytes_per_block}),
                       bounded_product({rows, cols})));
  add(size,
      codes_size(bounded_product({blocks(rows, projection.block_rows), blocks(cols, projection.block_cols), format->scale_bytes}),
                 0));
  add(size, codes_size(format->tensor_scale_bytes, 0));
  if (projection.bias) add(size, vector_size(rows));
  return size;
}

WeightSize expert_size(const Catalog& catalog, const LayerSpec& spec, std::int64_t intermediate) noexcept {
  WeightSize size;
  add(size, matrix_size(catalog, spec.gate_up, intermediate, spec.dispatch_width()), spec.activation.gated ? 2 : 1);
  add(size, matrix_size(catalog, spec.down, spec.dispatch_width(), intermediate));
  return size;
}

WeightSize common_size(const Catalog& catalog, const LayerSpec& spec, std::int64_t shared_intermediate) noexcept {
  const RouterSpec& router = spec.router;
  const std::int64_t scored = spec.experts + router.zero_experts;
  WeightSize size;
  add(size,
      codes_size(bounded_product({scored, spec.hidden, bits_of(router.weight_dtype) / 8}), bounded_product({scored, spec.hidden})));
  if (router.logit_bias) add(size, vector_size(scored));
  if (router.selection_bias) add(size, vector_size(scored, DType::f32));  // files keep this one in F32
  if (router.per_expert_scale) add(size, vector_size(spec.experts));
  if (shared_intermediate > 0) {
    add(size, matrix_size(catalog, spec.shared.gate_up, shared_intermediate, spec.hidden), spec.shared.activation.gated ? 2 : 1);
    add(size, matrix_size(catalog, spec.shared.down, spec.hidden, shared_intermediate));
    if (spec.shared.gate) {
      add(size, vector_size(spec.hidden));
      size.parameters = std::min(size.parameters + spec.hidden, kLargestSize + 1);
    }
  }
  if (spec.latent > 0) {
    add(size, matrix_size(catalog, spec.latent_in, spec.latent, spec.hidden));
    add(size, matrix_size(catalog, spec.latent_out, spec.hidden, spec.latent));
    if (spec.latent_norm) add(size, vector_size(spec.latent));
  }
  return size;
}

}  // namespace motet
