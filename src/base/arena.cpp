// SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/math.h"
#include "base/text.h"
#include "motet/error.h"

namespace motet {

Arena::Arena(std::int64_t bytes, std::string_view purpose) : bytes_(bytes) {
  MOTET_CHECK(bytes >= 0, "bytes %lld", static_cast<long long>(bytes));
  if (bytes == 0) return;
  const auto refuse = [&](const char* cause) {
    const std::int64_t physical = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    throw Error(ErrorCode::would_not_fit, std::string(purpose) + " needs " + bytes_text(bytes) + " (" + std::to_string(bytes) +
                                              " bytes) of memory, which the system refused (" + cause + "; it has " +
                                              bytes_text(physical) +
                                              "); use fewer tokens, fewer layers, or a machine or memory limit that is larger");
  };
  // The slack for alignment stays mapped but is never touched: it costs address space only.
  const bool large = bytes >= kHugePageBytes;
  std::int64_t wanted = 0;
  if (!checked_add(bytes, large ? kHugePageBytes : 0, &wanted) || !checked_round_up(wanted, sysconf(_SC_PAGESIZE), &wanted))
    refuse("the size overflows");
  void* const map = mmap(nullptr, static_cast<std::size_t>(wanted), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) refuse(std::strerror(errno));
  map_ = map;
  map_bytes_ = static_cast<std::size_t>(wanted);
  const auto address = reinterpret_cast<std::uintptr_t>(map);
  const auto huge = static_cast<std::uintptr_t>(kHugePageBytes);
  data_ = reinterpret_cast<std::byte*>(large ? (address + huge - 1) / huge * huge : address);
  if (large) madvise(data_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // advice: a refusal costs speed only, doctor tells
}

Arena::~Arena() {
  if (map_ != nullptr) munmap(map_, map_bytes_);
}

void Arena::touch() noexcept {
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  for (std::int64_t at = 0; at < bytes_; at += page) {
    auto* const byte = reinterpret_cast<volatile std::byte*>(data_ + at);
    *byte = *byte;
  }
}

}  // namespace motet
