// SPDX-License-Identifier: Apache-2.0
#include "plan/sizes.h"

#include <algorithm>

#include "base/math.h"

namespace motet {
namespace {

constexpr std::int64_t kBiasBytes = 4;

void add(WeightSize& sum, const WeightSize& part, std::int64_t times = 1) {
  sum.bytes = std::min(sum.bytes + bounded_product({part.bytes, times}), kLargestSize + 1);
  sum.parameters = std::min(sum.parameters + bounded_product({part.parameters, times}), kLargestSize + 1);
}

/// Blocks along one axis; a block of 0 is the whole extent.
std::int64_t blocks(std::int64_t extent, std::int64_t block) { return block == 0 ? 1 : ceil_div(extent, block); }

WeightSize vector_size(std::int64_t count, std::int64_t element_bytes) {
  return {.bytes = bounded_product({count, element_bytes}), .parameters = count};
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
  size.parameters = bounded_product({rows, cols});
  size.bytes = bounded_product({rows, ceil_div(cols, format->values_per_block), format->bytes_per_block});
  const std::int64_t scales =
      bounded_product({blocks(rows, projection.block_rows), blocks(cols, projection.block_cols), format->scale_bytes});
  size.bytes = std::min(size.bytes + scales, kLargestSize + 1);
  if (projection.bias) add(size, vector_size(rows, kBiasBytes));
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
  add(size, {.bytes = bounded_product({scored, spec.hidden, bits_of(router.weight_dtype) / 8}),
             .parameters = bounded_product({scored, spec.hidden})});
  const int vectors = int{router.logit_bias} + int{router.selection_bias} + int{router.per_expert_scale};
  add(size, vector_size(scored, 4), vectors);
  if (shared_intermediate > 0) {
    add(size, matrix_size(catalog, spec.shared.gate_up, shared_intermediate, spec.hidden), spec.shared.activation.gated ? 2 : 1);
    add(size, matrix_size(catalog, spec.shared.down, spec.hidden, shared_intermediate));
    if (spec.shared.gate) add(size, vector_size(spec.hidden, 4));
  }
  if (spec.latent > 0) {
    add(size, matrix_size(catalog, spec.latent_in, spec.latent, spec.hidden));
    add(size, matrix_size(catalog, spec.latent_out, spec.hidden, spec.latent));
    if (spec.latent_norm) add(size, vector_size(spec.latent, 4));
  }
  return size;
}

}  // namespace motet
