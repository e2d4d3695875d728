// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: a segment of anonymous memory.
#include "base/arena.h"
#include "fabric/segment.h"

namespace motet {

extern const FabricTraits fabric_threads;
const FabricTraits fabric_threads = {.name = "threads",
                                     .summary = "ranks are threads of one process; a message is stored where its receiver reads it",
                                     .one_host = true};

namespace {

class ThreadEndpoint final : public SegmentEndpoint {
 public:
  ThreadEndpoint(std::shared_ptr<Arena> memory, Rank rank, Rank ranks)
      : SegmentEndpoint(memory->data(), memory->bytes(), rank, ranks), memory_(std::move(memory)) {}

 private:
  void provide(std::int64_t, std::int64_t, std::string_view) override {}  // anonymous memory comes when it is touched

  const std::shared_ptr<Arena> memory_;
};

}  // namespace

std::vector<std::unique_ptr<Endpoint>> thread_endpoints(Rank ranks, std::int64_t reserve) {
  const auto memory = std::make_shared<Arena>(reserve, "the mailboxes of a group of threads");
  std::vector<std::unique_ptr<Endpoint>> result;
  for (Rank rank = 0; rank < ranks; ++rank) result.push_back(std::make_unique<ThreadEndpoint>(memory, rank, ranks));
  return result;
}

}  // namespace motet
