// SPDX-License-Identifier: Apache-2.0
// The layer behind Layer::create: what creation builds and the stages of forward, each in a file of its own.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "base/arena.h"
#include "motet/layer.h"
#include "runtime/extents.h"
#include "runtime/group.h"
#include "runtime/poison.h"
#include "runtime/tail.h"
#include "runtime/weights_read.h"

namespace motet {

struct LayerOptions {
  bool poison = false;  ///< poisoned workspace and canaries; a broken canary makes forward return ErrorCode::internal
};

/// Layer::create with options that only tests and checks set.
std::unique_ptr<Layer> create_layer(const Plan& plan, std::shared_ptr<const LayerWeights> weights, const Hooks& hooks,
                                    Executor* executor, const LayerOptions& options, std::shared_ptr<Group> group = nullptr);

class LayerImpl final : public Layer {
 public:
  LayerImpl(const Plan& plan, std::shared_ptr<const LayerWeights> weights, const Hooks& hooks, Executor* executor,
            const LayerOptions& options, std::shared_ptr<GroupImpl> group, std::unique_ptr<Exchange> exchange);

  const Plan& plan() const noexcept override { return plan_; }
  RunStatus forward(const ForwardInput& input, const ForwardOutput& output) noexcept override;
  void leave() noexcept override {
    step_begun_ = false;
    leave_step();
  }
  const ForwardStats& stats() const noexcept override { return stats_; }
  std::vector<ByteSpan> weights_read() const override;
  const std::int64_t* expert_load() const noexcept override { return load_.data(); }
  const PeerStats* peers() const noexcept override { return peers_.empty() ? nullptr : peers_.data(); }

 private:
  struct Call;  // one chunk of a forward: arguments, token and row counts

  // forward.cpp
  RunStatus run_stages(Call& call) noexcept;
  void enter(StageId stage) noexcept;
  void leave(StageId stage) noexcept;
  void count_work(const Call& call) noexcept;
  RunStatus check_padding(const Call& call) const noexcept;
  RunStatus check_canaries() const noexcept;
  // route_stage.cpp
  void route(const Call& call) noexcept;
  void take_given_routing(const Call& call) noexcept;
  void route_logits(const Call& call, const float* logits) noexcept;
  void give_routing(const Call& call) const noexcept;
  bool map_to_rows(Call& call) noexcept;
  // exchange_stage.cpp
  bool dispatches() const noexcept { return plan_.exchange.rows > 0; }
  void begin_step(const Call* call) noexcept;
  RunStatus dispatch(Call& call) noexcept;
  void prepare_received(const Call& call) noexcept;
  RunStatus combine() noexcept;
  RunStatus reduce(float* values) noexcept;
  RunStatus step_status() const noexcept;
  void leave_step() noexcept;
  void count_exchange() noexcept;
  // experts_stage.cpp
  void prepare_x(const Call& call) noexcept;
  void run_shared(const Call& call) noexcept;
  void latent_in(const Call& call) noexcept;
  void prepare(const Call& call) noexcept;
  void run_experts(const Call& call) noexcept;
  // finalize_stage.cpp
  RunStatus finalize(const Call& call) noexcept;
  Unfinalized triple(const Call& call) const noexcept;
  RunStatus run_tail(const Call& call) noexcept;

  Plan plan_;
  std::shared_ptr<GroupImpl> group_;                            // null on one rank
  std::unique_ptr<Exchange> exchange_;                          // the same
  const RankSlice slice_;                                       // of this rank
  std::shared_ptr<const LayerWeights> weights_, rank_weights_;  // the layer's, and this rank's part of them
  Hooks hooks_;
  Extents extents_;
  Arena workspace_;
  Areas areas_;
  std::unique_ptr<PreparedBackend> backend_;
  std::unique_ptr<Executor> own_executor_;  // the pool, or the guard around the caller's executor
  Executor* executor_ = nullptr;
  std::unique_ptr<Poison> poison_;

  std::vector<float> router_bias_, selection_bias_, per_expert_scale_, latent_norm_, shared_gate_;
  std::vector<float> route_scratch_;        // route_scratch_floats per thread
  std::vector<std::int32_t> hash_scratch_;  // top_k per thread, hash routing only
  std::int64_t shared_rows_[2] = {0, 0};    // prefix sums of the shared expert's one slot
  ReadCosts costs_;
  std::int64_t max_rows_ = 0;             // of the permuted batch
  const std::byte* part_ = nullptr;       // of the step under way: hidden states that it dispatches
  std::vector<std::int32_t> slots_;       // [tokens, top_k] without zero experts, where ranks dispatch and the layer has some
  std::vector<std::int64_t> load_;        // [experts]
  std::vector<std::int64_t> chunk_load_;  // of the experts here
  std::vector<PeerStats> peers_;
  ForwardStats stats_;
  bool ran_router_ = false;  // in the last forward
  bool step_begun_ = false;  // of this chunk
  std::chrono::steady_clock::time_point stage_begin_{};
};

struct LayerImpl::Call {
  const ForwardInput& input;
  const ForwardOutput& output;
  std::int64_t tokens = 0;
  std::int64_t chunk = 0, forward_tokens = 0;  ///< which chunk of how many tokens in all
  std::int64_t rows = 0;                       ///< of the permuted batch
  bool ran_router = false;
  /// What is mapped to experts here: this rank's tokens, or the rows that came.
  std::int64_t mapped = 0, choices = 0;
  const std::int32_t* slot = nullptr;  ///< [mapped, choices]
  const float* weight = nullptr;       ///< [mapped, choices]
};

}  // namespace motet
