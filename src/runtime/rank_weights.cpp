// SPDX-License-Identifier: Apache-2.0
#include "runtime/rank_weights.h"

#include "backends/support/weights_check.h"
#include "base/check.h"
#include "formats/format.h"
#include "plan/slices.h"

namespace motet {
namespace {

using std::int64_t;

struct Piece {
  int64_t begin, count;
};

/// Blocks before `begin`. A block that is cut lasts to the end of its axis: it is the only one.
int64_t blocks_before(int64_t begin, int64_t block) {
  MOTET_CHECK(begin % block == 0 || begin < block, "a slice at %lld cuts a block of %lld", static_cast<long long>(begin),
              static_cast<long long>(block));
  return begin / block;
}

WeightView rows_of(WeightView view, Piece rows) {
  if (view.codes == nullptr) return view;
  MOTET_CHECK(view.zeros == nullptr && view.panel_bytes == 0 && rows.begin + rows.count <= view.rows);
  view.codes += rows.begin * view.row_stride;
  view.rows = rows.count;
  if (view.scales != nullptr) view.scales += blocks_before(rows.begin, view.block_rows) * view.scale_row_stride;
  return view;
}

WeightView cols_of(WeightView view, Piece cols, const FormatFacts& facts) {
  MOTET_CHECK(view.zeros == nullptr && view.panel_bytes == 0 && cols.begin + cols.count <= view.cols);
  MOTET_CHECK(cols.begin % facts.values_per_block == 0, "column %lld", static_cast<long long>(cols.begin));
  view.codes += view.col_stride != 0 ? cols.begin * view.col_stride : cols.begin / facts.values_per_block * facts.bytes_per_block;
  view.cols = cols.count;
  if (view.scales != nullptr) view.scales += blocks_before(cols.begin, view.block_cols) * view.scale_col_stride;
  return view;
}

BiasView part_of(BiasView bias, Piece part) {
  if (bias.data == nullptr) return bias;
  bias.data += part.begin * bias.stride;
  bias.count = part.count;
  return bias;
}

ExpertView slice(const ExpertView& expert, Piece intermediate, const ProjectionSpec& down, bool down_bias) {
  return {.gate = rows_of(expert.gate, intermediate),
          .up = rows_of(expert.up, intermediate),
          .down = cols_of(expert.down, intermediate, find_format(down.format)->facts),
          .gate_bias = part_of(expert.gate_bias, intermediate),
          .up_bias = part_of(expert.up_bias, intermediate),
          .down_bias = down_bias ? expert.down_bias : BiasView{}};
}

class RankWeights final : public LayerWeights {
 public:
  RankWeights(const Plan& plan, const RankSlice& rank, std::shared_ptr<const LayerWeights> whole)
      : LayerWeights(*whole), whole_(std::move(whole)) {
    spec = spec_of_rank(plan.spec, rank);
    experts.clear();
    for (int64_t e = rank.expert_begin; e < rank.expert_begin + rank.expert_count; ++e)
      experts.push_back(slice(whole_->experts[static_cast<std::size_t>(e)], {rank.intermediate_begin, rank.intermediate_valid},
                              plan.spec.down, rank.down_bias));
    if (plan.spec.shared.intermediate > 0)
      shared = slice(whole_->shared, {rank.shared_begin, rank.shared_valid}, plan.spec.shared.down, rank.shared_bias);
  }

  void drop(const std::byte* begin, int64_t size) const noexcept override { whole_->drop(begin, size); }
  RunStatus verify_unchanged() const noexcept override { return whole_->verify_unchanged(); }

 private:
  std::shared_ptr<const LayerWeights> whole_;
};

}  // namespace

std::shared_ptr<const LayerWeights> weights_of_rank(const Plan& plan, int64_t rank, std::shared_ptr<const LayerWeights> whole) {
  if (plan.ranks.size() == 1) return whole;
  check_whole_weights(plan, *whole);
  return std::make_shared<RankWeights>(plan, plan.ranks[static_cast<std::size_t>(rank)], std::move(whole));
}

}  // namespace motet
