// SPDX-License-Identifier: Apache-2.0
// Files read in place: identity, small reads, and read-only mappings that know when their file changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "motet/error.h"

namespace motet {

/// What tells one state of a file from another.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0;
  std::int64_t bytes = 0, modified_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

/// A regular file opened for reading; closes with the object. Throws Error(io_error) naming `name`.
class OpenFile {
 public:
  OpenFile(const std::string& path, const std::string& name);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int descriptor() const noexcept { return descriptor_; }
  const FileIdentity& identity() const noexcept { return identity_; }
  /// Reads exactly `bytes` at `offset`. Throws Error(io_error) when the file ends before.
  void read(std::int64_t offset, void* out, std::int64_t bytes) const;

 private:
  std::string name_;
  int descriptor_ = -1;
  FileIdentity identity_;
};

/// The whole text of a small file. Throws Error(bad_input) when it is longer than `limit` bytes.
std::string read_text(const std::string& path, const std::string& name, std::int64_t limit);

/// A whole file mapped privately and read-only. No descriptor stays open: hundreds of shards fit any descriptor limit.
/// A file that shrinks while mapped makes the lost pages fault (SIGBUS): call verify_unchanged() before reading.
class MappedFile {
 public:
  /// Throws Error(file_changed) when the file is not `expected` any more, Error(io_error) when it cannot be mapped.
  MappedFile(const std::string& path, const std::string& name, const FileIdentity& expected);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const std::byte* data() const noexcept { return data_; }
  /// Compares the path's present size, time and inode with those at mapping. Allocates nothing.
  RunStatus verify_unchanged() const noexcept;
  /// Gives back the whole pages among these bytes that belong to this mapping; reading them again reads the file again.
  void drop(const std::byte* begin, std::int64_t size) const noexcept;

 private:
  std::string path_, name_;
  FileIdentity identity_;
  const std::byte* data_ = nullptr;
};

}  // namespace motet
