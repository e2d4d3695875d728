// SPDX-License-Identifier: Apache-2.0
#include "motet/tensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "base/json.h"
#include "base/math.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"

namespace motet {
namespace {

class MappedTensors final : public TensorFile {
 public:
  explicit MappedTensors(const std::string& path)
      : header_(read_safetensors(path, path)), file_(std::make_unique<MappedFile>(path, path, header_.identity)) {
    for (const TensorInfo& info : header_.tensors) {
      by_name_.emplace(info.name, tensors_.size());
      tensors_.push_back({info.name, info.dtype, info.shape, file_->data() + info.offset});
    }
  }
  const std::vector<NamedTensor>& tensors() const override { return tensors_; }
  const NamedTensor* find(const std::string& name) const override {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
  }

 private:
  SafetensorsFile header_;
  std::unique_ptr<MappedFile> file_;
  std::vector<NamedTensor> tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

// A file under construction beside its final place: renamed by commit(), removed when it is not reached.
class PendingFile {
 public:
  explicit PendingFile(const std::string& path) : path_(path), pending_(path.substr(0, path.rfind('/') + 1) + ".motet-XXXXXX") {
    struct stat present {};
    if (::stat(path.c_str(), &present) == 0 && !S_ISREG(present.st_mode)) {
      throw Error(ErrorCode::io_error, format_text("a result is written to a regular file, but %s is a directory or a device; choose another --output", motet::quoted(path_).c_str()));
    }
    descriptor_ = ::mkstemp(pending_.data());
    if (descriptor_ < 0) fail("create");
  }
  ~PendingFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!committed_) ::unlink(pending_.c_str());
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(const void* data, std::size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(descriptor_, from, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("write");
      from += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }

  void commit() {
    // mkstemp makes private files; results get the permissions that any new file of this process gets.
    const mode_t mask = ::umask(0);
    ::umask(mask);
    if (::fchmod(descriptor_, 0666 & ~mask) != 0 || ::fsync(descriptor_) != 0) fail("finish");
    if (::rename(pending_.c_str(), path_.c_str()) != 0) fail("put in place");
    committed_ = true;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(ErrorCode::io_error, format_text("the result file %s must be writable, but the system could not %s it (%s); choose another --output or free space",
                                                 motet::quoted(path_).c_str(), what, std::strerror(errno)));
  }

  std::string path_, pending_;
  int descriptor_ = -1;
  bool committed_ = false;
};

std::int64_t bytes_of(const NamedTensor& tensor) {
  std::int64_t bits = bits_of(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0 || !checked_mul(bits, extent, &bits)) {
      throw Error(ErrorCode::invalid_argument, format_text("tensor %s has an extent that is negative or too large to store", motet::quoted(tensor.name).c_str()));
    }
  }
  return bits / 8;
}

}  // namespace

std::shared_ptr<TensorFile> TensorFile::open(const std::string& path) { return std::make_shared<MappedTensors>(path); }

void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::string header = "{";
  std::int64_t offset = 0;
  std::unordered_set<std::string> names;
  for (const NamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw Error(ErrorCode::invalid_argument, format_text("a tensor file holds each name once, but %s was given twice to %s; rename one",
                                                           motet::quoted(tensor.name).c_str(), motet::quoted(path).c_str()));
    }
    const std::int64_t end = offset + bytes_of(tensor);
    std::string shape;
    for (const std::int64_t extent : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    header += format_text("%s%s:{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%lld,%lld]}", header.size() > 1 ? "," : "", Json(tensor.name).dump().c_str(),
                          std::string(name_of(tensor.dtype)).c_str(), shape.c_str(), static_cast<long long>(offset), static_cast<long long>(end));
    offset = end;
  }
  header += "}";
  header.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(header.size()), 8)), ' ');
  PendingFile file(path);
  const std::uint64_t length = header.size();
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  for (const NamedTensor& tensor : tensors) file.write(tensor.data, static_cast<std::size_t>(bytes_of(tensor)));
  file.commit();
}

void write_text_file(const std::string& path, const std::string& text) {
  PendingFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace motet
