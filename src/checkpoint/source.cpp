// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/source.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <unordered_set>

#include "base/json_reader.h"
#include "checkpoint/file_kind.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/text.h"

namespace motet {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::int64_t kMaxIndexBytes = 100'000'000;
constexpr std::int64_t kMaxConfigBytes = 4'000'000;   // published ones stay below 200 kB

bool present(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool ends_with(std::string_view text, std::string_view end) { return text.size() >= end.size() && text.substr(text.size() - end.size()) == end; }

/// One component of a path, nothing that leaves the directory.
bool plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() < 256 && name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// Empty when no variable says where the cache would be.
fs::path hub_cache() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  const std::string user = environment("HOME");
  return user.empty() ? fs::path() : fs::path(user) / ".cache/huggingface/hub";
}

/// "owner/name" as the hub allows it.
bool is_hub_id(std::string_view where) {
  const std::size_t slash = where.find('/');
  if (slash == std::string_view::npos || slash == 0 || where.find('/', slash + 1) != std::string_view::npos || slash + 1 == where.size()) return false;
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_' || c == '/'; };
  return std::all_of(where.begin(), where.end(), allowed) && where.front() != '.' && where[slash + 1] != '.';
}

/// refs/main names the snapshot; its files are links into blobs/.
fs::path snapshot_of(const fs::path& repository, const std::string& where) {
  const fs::path reference = repository / "refs/main";
  if (!present(reference)) fail(ErrorCode::io_error, quote(where), ": ", reference.string(), " is missing, so the cache holds no main revision: download the model again");
  std::string revision = read_text(reference.string(), "refs/main", 4096);
  while (!revision.empty() && (revision.back() == '\n' || revision.back() == '\r' || revision.back() == ' ')) revision.pop_back();
  if (!plain_name(revision)) fail(ErrorCode::bad_input, quote(where), ": ", reference.string(), " holds ", quote(revision), " and must hold a revision: download the model again");
  fs::path snapshot = repository / "snapshots" / revision;
  if (!present(snapshot)) fail(ErrorCode::io_error, quote(where), ": snapshot ", revision, " is not in the cache: download the model again");
  return snapshot;
}

fs::path hub_directory(const std::string& where) {
  std::string folder = "models--" + where;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path cache = hub_cache();
  if (cache.empty()) {
    fail(ErrorCode::io_error, quote(where), " is neither a file or directory here, nor is there a hub cache to look in: HF_HUB_CACHE, HF_HOME and HOME are unset; set one, or give a directory");
  }
  const fs::path repository = cache / folder;
  if (!present(repository)) {
    fail(ErrorCode::io_error, quote(where), " is neither a file or directory here nor a model in the local hub cache (", cache.string(),
         "): Motet downloads nothing; download it first, or set HF_HUB_CACHE");
  }
  return snapshot_of(repository, where);
}

/// Why a directory without model.safetensors is none of ours, by what lies in it.
[[noreturn]] void no_weights(const fs::path& directory) {
  std::string found;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end && found.size() < 300; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (ends_with(name, ".incomplete")) fail(ErrorCode::bad_input, directory.string(), " holds ", quote(name), ": an unfinished download; finish it");
    for (const std::string_view end_of : {".safetensors", ".bin", ".gguf", ".pt", ".pth"}) {
      if (ends_with(name, end_of)) found += (found.empty() ? "" : ", ") + quote(name);
    }
  }
  const bool shards = found.find("-of-") != std::string::npos && found.find(".safetensors") != std::string::npos;
  fail(ErrorCode::bad_input, directory.string(), " holds neither ", kIndexName, " nor ", kSingleName, found.empty() ? "" : " but " + found,
       shards ? ": the shards need their index; fetch it too" : ": give the directory of a safetensors checkpoint, or one .safetensors file");
}

/// Files beside the checkpoint that could be mistaken for a part of it.
void note_neighbours(Source& source) {
  const std::set<std::string> ours(source.files.begin(), source.files.end());
  std::error_code error;
  std::vector<std::string> others;
  for (fs::directory_iterator entry(source.directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (ends_with(name, ".safetensors") && !ours.count(name)) others.push_back(name);
    if (name == "original" && entry->is_directory(error)) source.notes.push_back("original/ holds another copy of the model and is not read");
  }
  std::sort(others.begin(), others.end());
  for (const std::string& name : others) source.notes.push_back(name + " is not read: " + (source.indexed ? "the index does not name it" : "it is no part of this checkpoint"));
}

}  // namespace

std::vector<IndexEntry> parse_index(std::string_view text) {
  const std::string what(kIndexName);
  JsonReader reader(text, what);
  std::vector<IndexEntry> entries;
  std::unordered_set<std::string> names;
  bool seen = false;
  reader.open_object();
  while (const auto key = reader.next_key()) {
    if (*key != "weight_map") { reader.skip(); continue; }
    if (seen) reader.fail_duplicate(*key);
    seen = true;
    reader.open_object();
    while (const auto tensor = reader.next_key()) {
      IndexEntry entry{std::string(*tensor), {}};
      if (!names.insert(entry.tensor).second) reader.fail_duplicate(entry.tensor);
      entry.file = std::string(reader.read_string());
      if (!plain_name(entry.file)) {
        fail(ErrorCode::bad_input, kIndexName, ": tensor ", quote(entry.tensor), " lies in ", quote(entry.file),
             ", which is no plain file name: a shard lies beside the index; fetch the index again");
      }
      entries.push_back(std::move(entry));
    }
  }
  reader.finish();
  if (entries.empty()) fail(ErrorCode::bad_input, kIndexName, " has no 'weight_map' that names a tensor: fetch the index again");
  return entries;
}

Source locate(const std::string& where) {
  std::error_code error;
  fs::path path(where);
  Source source;
  if (fs::is_directory(path, error)) {
    if (!present(path / "config.json") && present(path / "refs") && present(path / "snapshots")) path = snapshot_of(path, where);
  } else if (present(path)) {
    const OpenFile file(where, quote(where));
    std::string start(static_cast<std::size_t>(std::min<std::int64_t>(file.identity().bytes, 512)), '\0');
    file.read(0, start.data(), static_cast<std::int64_t>(start.size()));
    const std::string kind = foreign_kind(start);
    if (!kind.empty()) fail(ErrorCode::bad_input, quote(where), " is no safetensors file but ", kind);
    if (!ends_with(where, ".safetensors")) fail(ErrorCode::bad_input, quote(where), " is neither a directory nor a .safetensors file: give the checkpoint's directory");
    source.files.push_back(path.filename().string());
    path = fs::absolute(path, error).parent_path();
  } else if (is_hub_id(where)) {
    path = hub_directory(where);
  } else {
    fail(ErrorCode::io_error, quote(where), " does not exist: give a directory, a .safetensors file, or a hub id 'owner/name' that lies in the local cache");
  }
  source.directory = fs::absolute(path, error).lexically_normal().string();
  if (!present(path / "config.json")) fail(ErrorCode::bad_input, source.directory, " holds no config.json, which tells the family and the layer sizes: put it beside the weights");
  source.config = read_text((path / "config.json").string(), "config.json", kMaxConfigBytes);
  if (present(path / "hf_quant_config.json")) source.quantization = read_text((path / "hf_quant_config.json").string(), "hf_quant_config.json", kMaxConfigBytes);
  if (!source.files.empty()) return source;
  if (present(path / kIndexName)) {
    source.indexed = true;
    source.index = parse_index(read_text((path / kIndexName).string(), std::string(kIndexName), kMaxIndexBytes));
    std::set<std::string> files;
    for (const IndexEntry& entry : source.index) files.insert(entry.file);
    source.files.assign(files.begin(), files.end());
  } else if (present(path / kSingleName) || fs::is_symlink(path / kSingleName, error)) {
    source.files.emplace_back(kSingleName);
  } else {
    no_weights(path);
  }
  note_neighbours(source);
  return source;
}

}  // namespace motet
