// SPDX-License-Identifier: Apache-2.0
#include "runtime/poison.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace motet {
namespace {

constexpr int kNanByte = 0xFF;  // 0xFF.. is NaN in f32, f16, bf16 and e4m3, and -1 in the integer areas
constexpr int kCanaryByte = 0xA5;

}  // namespace

bool poison_wished() noexcept {
  const char* value = std::getenv("MOTET_POISON");
  return value != nullptr && std::string_view(value) == "1";
}

Poison::Poison(const Plan& plan, std::byte* workspace) : plan_(plan), workspace_(workspace) {
  std::vector<const Area*> areas;
  for (const Area& area : plan.workspace.areas) areas.push_back(&area);
  std::sort(areas.begin(), areas.end(), [](const Area* a, const Area* b) { return a->offset < b->offset; });
  std::int64_t covered = 0;
  const char* after = "workspace start";
  const auto close = [&](std::int64_t offset) {
    if (offset > covered) gaps_.push_back({covered, offset - covered, after});
  };
  for (const Area* area : areas) {
    close(area->offset);
    if (area->offset + area->bytes > covered) after = name_of(area->id).data();
    covered = std::max(covered, area->offset + area->bytes);
  }
  close(plan.workspace.bytes);
}

void Poison::before_forward() const noexcept {
  if (plan_.workspace.bytes > 0) std::memset(workspace_, kNanByte, static_cast<std::size_t>(plan_.workspace.bytes));
  for (const Gap& gap : gaps_) std::memset(workspace_ + gap.offset, kCanaryByte, static_cast<std::size_t>(gap.bytes));
}

void Poison::enter(StageId stage) const noexcept {
  for (const Area& area : plan_.workspace.areas)
    if (area.first == stage && area.bytes > 0)
      std::memset(workspace_ + area.offset, kNanByte, static_cast<std::size_t>(area.bytes));
}

void Poison::leave(StageId stage) const noexcept {
  if (stage == StageId::tail) return;
  for (const Area& area : plan_.workspace.areas)
    if (area.last == stage && area.bytes > 0) std::memset(workspace_ + area.offset, kNanByte, static_cast<std::size_t>(area.bytes));
}

const char* Poison::broken_canary() const noexcept {
  for (const Gap& gap : gaps_) {
    const std::byte* begin = workspace_ + gap.offset;
    if (std::any_of(begin, begin + gap.bytes, [](std::byte value) { return value != std::byte{kCanaryByte}; })) return gap.after;
  }
  return nullptr;
}

std::int64_t first_unclean_padding(const std::byte* data, std::int64_t rows, std::int64_t stride, std::int64_t valid,
                                   std::int64_t stored, std::int64_t element_bytes) noexcept {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::byte* begin = data + row * stride + valid * element_bytes;
    const std::byte* end = data + row * stride + stored * element_bytes;
    if (std::any_of(begin, end, [](std::byte value) { return value != std::byte{0}; })) return row;
  }
  return -1;
}

}  // namespace motet
