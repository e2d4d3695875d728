// SPDX-License-Identifier: Apache-2.0
// Poisoned workspaces for tests (L4, L8, L12): NaN bytes in every area before each stage that owns it, canaries in between.
// Valid results must not change by one bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "motet/plan.h"

namespace motet {

/// Whether the environment asks for it: MOTET_POISON=1.
bool poison_wished() noexcept;

/// Poisons one workspace. Built at creation; the other functions allocate nothing.
class Poison {
 public:
  /// `workspace` holds plan.workspace.bytes. The plan outlives this object.
  Poison(const Plan& plan, std::byte* workspace);

  /// Fills the whole workspace with NaN bytes (0xFF) and the bytes that no area covers with canaries.
  void before_forward() const noexcept;
  /// NaN bytes into the areas whose life begins with this stage.
  void enter(StageId stage) const noexcept;
  /// NaN bytes into the areas whose life ends with this stage, the last one excepted: results stay readable after it.
  void leave(StageId stage) const noexcept;
  /// Name of an area in front of a canary that changed, or "workspace start"; null when all are whole.
  const char* broken_canary() const noexcept;

 private:
  struct Gap {
    std::int64_t offset = 0, bytes = 0;
    const char* after = "workspace start";
  };
  const Plan& plan_;
  std::byte* workspace_;
  std::vector<Gap> gaps_;
};

/// First row of `rows` whose elements [valid, stored) of `element_bytes` are not all zero bytes; -1 when there is none.
std::int64_t first_unclean_padding(const std::byte* data, std::int64_t rows, std::int64_t stride, std::int64_t valid,
                                   std::int64_t stored, std::int64_t element_bytes) noexcept;

}  // namespace motet
