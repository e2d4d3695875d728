// SPDX-License-Identifier: Apache-2.0
// One region of anonymous memory, allocated when it is made and released when it is destroyed, never in between (L16).
// Evidence: on virtual machines a large munmap costs every later first touch of the process 0.5 to 2 us per 4 KiB page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace motet {

/// Zero-filled, aligned to 2 MiB (and advised for huge pages) from 2 MiB up, else to the page. Movable; thread-safe to read.
class Arena {
 public:
  Arena() = default;
  /// Maps `bytes` (>= 0; 0 maps nothing). Pages become resident when written. Throws Error(would_not_fit) with the sizes,
  /// naming `purpose`, such as "the workspace of layer 3".
  Arena(std::int64_t bytes, std::string_view purpose);
  Arena(Arena&& other) noexcept { swap(other); }
  Arena& operator=(Arena&& other) noexcept {
    Arena(std::move(other)).swap(*this);
    return *this;
  }
  ~Arena();

  std::byte* data() const noexcept { return data_; }
  std::int64_t bytes() const noexcept { return bytes_; }  ///< exactly as asked for
  /// Makes every page resident now, so that no later write waits for one.
  void touch() noexcept;
  void swap(Arena& other) noexcept {
    std::swap(map_, other.map_);
    std::swap(map_bytes_, other.map_bytes_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

 private:
  void* map_ = nullptr;
  std::size_t map_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Bytes of a large page on this architecture.
inline constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

}  // namespace motet
