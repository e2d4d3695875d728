// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>

#include "base/math.h"
#include "checkpoint/text.h"

namespace motet {
namespace {

FileIdentity identity_of(const struct stat& info) noexcept {
  FileIdentity result;
  result.device = static_cast<std::uint64_t>(info.st_dev);
  result.inode = static_cast<std::uint64_t>(info.st_ino);
  result.bytes = static_cast<std::int64_t>(info.st_size);
  result.modified_ns = static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
  return result;
}

}  // namespace

OpenFile::OpenFile(const std::string& path, const std::string& name) : name_(name) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // non-blocking: a FIFO must not hang us
  if (descriptor_ < 0) fail(ErrorCode::io_error, name, " cannot be opened: ", std::strerror(errno), " (", path, ")");
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor_);
    fail(ErrorCode::io_error, name, " is not a regular file (", path, ")");
  }
  identity_ = identity_of(info);
}

OpenFile::~OpenFile() { ::close(descriptor_); }

void OpenFile::read(std::int64_t offset, void* out, std::int64_t bytes) const {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::io_error, name_, " cannot be read at byte ", offset, ": ", std::strerror(errno));
    if (got == 0)
      fail(ErrorCode::io_error, name_, " ended at byte ", offset,
           " while it was read: it shrank; wait until it is written, then try again");
    to += got;
    offset += got;
    bytes -= got;
  }
}

std::string read_text(const std::string& path, const std::string& name, std::int64_t limit) {
  const OpenFile file(path, name);
  if (file.identity().bytes > limit) {
    fail(ErrorCode::bad_input, name, " has ", file.identity().bytes, " bytes and may have ", limit,
         ": it is no such file; fetch it again");
  }
  std::string text(static_cast<std::size_t>(file.identity().bytes), '\0');
  file.read(0, text.data(), file.identity().bytes);
  return text;
}

MappedFile::MappedFile(const std::string& path, const std::string& name, const FileIdentity& expected)
    : path_(path), name_(name), identity_(expected) {
  const OpenFile file(path, name);
  if (file.identity() != expected) {
    fail(ErrorCode::file_changed, name, " changed after its header was read (", expected.bytes, " bytes then, ",
         file.identity().bytes, " now): open the checkpoint again");
  }
  if (expected.bytes == 0) return;
  void* const address = ::mmap(nullptr, static_cast<std::size_t>(expected.bytes), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (address == MAP_FAILED)
    fail(ErrorCode::io_error, name, " cannot be mapped (", expected.bytes, " bytes): ", std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(identity_.bytes));
}

void MappedFile::drop(const std::byte* begin, std::int64_t size) const noexcept {
  const std::less<const std::byte*> before;  // the bytes may belong to another mapping
  if (data_ == nullptr || before(begin, data_) || !before(begin, data_ + identity_.bytes)) return;
  const std::int64_t page = ::sysconf(_SC_PAGESIZE), first = round_up(begin - data_, page),
                     last = round_down(std::min(begin - data_ + size, identity_.bytes), page);
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, static_cast<std::size_t>(last - first), MADV_DONTNEED);
}

RunStatus MappedFile::verify_unchanged() const noexcept {
  struct stat info {};
  const bool gone = ::stat(path_.c_str(), &info) != 0;
  const FileIdentity now = gone ? FileIdentity{} : identity_of(info);
  if (!gone && now == identity_) return {};
  const bool same_file = now.device == identity_.device && now.inode == identity_.inode;
  const char* const what = gone                          ? "is gone"
                           : !same_file                  ? "was replaced"
                           : now.bytes < identity_.bytes ? "shrank"
                                                         : "was written to";
  RunStatus status;
  status.code = ErrorCode::file_changed;
  std::snprintf(status.message.data(), status.message.size(),
                "%.120s %s while it was mapped (%lld bytes then, %lld now): weights may be lost; open the checkpoint again",
                name_.c_str(), what, static_cast<long long>(identity_.bytes), static_cast<long long>(now.bytes));
  return status;
}

}  // namespace motet
