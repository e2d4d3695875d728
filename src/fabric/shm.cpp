// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of one host: a segment in a file without a name, which every rank maps.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "fabric/segment.h"
#include "motet/error.h"

namespace motet {

extern const FabricTraits fabric_shm;
const FabricTraits fabric_shm = {
    .name = "shm", .summary = "ranks are processes of one host; a message is stored where its receiver reads it", .one_host = true};

namespace {

[[noreturn]] void refuse(const char* what, std::int64_t bytes, int error) {
  throw Error(
      ErrorCode::would_not_fit,
      format_text("%s of %lld bytes of shared memory was refused (%s); use fewer ranks or tokens, or raise the memory limit", what,
                  static_cast<long long>(bytes), std::strerror(error)));
}

class ShmEndpoint final : public SegmentEndpoint {
 public:
  ShmEndpoint(std::byte* base, int file, std::int64_t reserve, Rank rank, Rank ranks)
      : SegmentEndpoint(base, reserve, rank, ranks), base_(base), file_(file), reserve_(reserve) {}
  ~ShmEndpoint() override {
    munmap(base_, static_cast<std::size_t>(reserve_));
    close(file_);
  }

 private:
  /// Now, by name, instead of SIGBUS at the first touch. A second rank that asks for the same bytes changes nothing.
  void provide(std::int64_t begin, std::int64_t end, std::string_view purpose) override {
    if (end == begin) return;
    const int error = posix_fallocate(file_, begin, end - begin);
    if (error != 0)
      refuse(format_text("mailbox '%.*s'", static_cast<int>(purpose.size()), purpose.data()).c_str(), end - begin, error);
  }

  std::byte* const base_;
  const int file_;
  const std::int64_t reserve_;
};

}  // namespace

int shm_segment(Rank ranks, std::int64_t reserve) {
  const int file = memfd_create("motet-mailboxes", MFD_CLOEXEC);
  const std::int64_t states = ranks * std::int64_t{sizeof(RankState)};
  int error = file < 0 ? errno : ftruncate(file, reserve) != 0 ? errno : posix_fallocate(file, 0, states);
  if (error == 0) return file;
  if (file >= 0) close(file);
  refuse("a segment", reserve, error);
}

std::unique_ptr<Endpoint> shm_endpoint(int segment, std::int64_t reserve, Rank rank, Rank ranks) {
  const int file = fcntl(segment, F_DUPFD_CLOEXEC, 0);
  if (file < 0) refuse("the descriptor of a segment", reserve, errno);
  void* const base = mmap(nullptr, static_cast<std::size_t>(reserve), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    close(file);
    refuse("mapping a segment", reserve, error);
  }
  return std::make_unique<ShmEndpoint>(static_cast<std::byte*>(base), file, reserve, rank, ranks);
}

}  // namespace motet
