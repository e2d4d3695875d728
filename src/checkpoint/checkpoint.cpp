// SPDX-License-Identifier: Apache-2.0
#include "motet/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <unordered_map>

#include "checkpoint/byte_ranges.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/source.h"
#include "checkpoint/text.h"
#include "checkpoint/weights.h"

namespace motet {
namespace {

class OpenCheckpoint final : public Checkpoint {
 public:
  explicit OpenCheckpoint(const std::string& where) {
    Source source = locate(where);
    path_ = source.directory;
    notes_ = std::move(source.notes);
    const Config config(source.config, source.quantization);
    const Family& family = family_of(config);
    family_ = family.name;
    if (source.indexed) read_shards(source, family, config);
    else read_single(source.files.front());
    table_ = std::make_unique<TensorTable>(tensors_);
    const std::vector<std::int64_t> numbers = moe_layers(family, config, table_->size());
    std::vector<std::string_view> names;
    for (const TensorInfo& tensor : tensors_) names.push_back(tensor.name);
    stored_ = resolve_layers(*table_, family, config, layer_prefix(names, family, numbers), numbers, notes_);
    for (const StoredLayer& layer : stored_) layers_.push_back(layer.summary);
  }

  const std::string& path() const override { return path_; }
  const std::string& family() const override { return family_; }
  const std::vector<LayerSummary>& layers() const override { return layers_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::vector<std::string>& notes() const override { return notes_; }
  const LayerSummary& layer(std::int64_t number) const override { return stored(number).summary; }

  std::vector<ByteRange> byte_ranges(const Plan& plan, std::int64_t rank) const override {
    const StoredLayer& layer = stored(plan.spec.layer);
    if (plan.spec != layer.summary.spec) fail(ErrorCode::invalid_argument, "the plan is of another layer than layer ", plan.spec.layer, " of ", path_, ": plan with the spec of this checkpoint");
    if (!layer.not_built.empty()) fail(ErrorCode::not_supported, "layer ", plan.spec.layer, " has no plan: ", layer.not_built);
    if (rank < 0 || rank >= static_cast<std::int64_t>(plan.ranks.size())) fail(ErrorCode::invalid_argument, "rank ", rank, " is not one of the plan's ", plan.ranks.size(), " ranks");
    return ranges_of(layer, *table_, plan.ranks[static_cast<std::size_t>(rank)]);
  }

  std::shared_ptr<const LayerWeights> load(std::int64_t number) const override { return load_layer(stored(number), *table_, files_); }

 private:
  const StoredLayer& stored(std::int64_t number) const {
    for (const StoredLayer& layer : stored_) {
      if (layer.summary.spec.layer == number) return layer;
    }
    std::string list;
    for (const StoredLayer& layer : stored_) list += (list.empty() ? "" : ", ") + std::to_string(layer.summary.spec.layer);
    fail(ErrorCode::invalid_argument, "layer ", number, " is no MoE layer of ", path_, "; these are: ", list);
  }

  std::string path_of(const std::string& file) const { return (std::filesystem::path(path_) / file).string(); }

  void read_single(const std::string& file) {
    files_.push_back(read_safetensors(path_of(file), file));
    tensors_ = std::move(files_.front().tensors);
    files_.front().tensors.clear();
  }

  /// The index decides. Shards without a tensor of an MoE layer may be absent or broken: that is noted.
  void read_shards(const Source& source, const Family& family, const Config& config) {
    std::unordered_map<std::string_view, const std::string*> home;
    std::vector<std::string_view> names;
    for (const IndexEntry& entry : source.index) {
      home.emplace(entry.tensor, &entry.file);
      names.push_back(entry.tensor);
    }
    const std::vector<std::int64_t> numbers = moe_layers(family, config, static_cast<std::int64_t>(names.size()));
    const std::map<std::string, std::string> needed = needed_files(source, family, layer_prefix(names, family, numbers), numbers);
    std::set<std::string> absent;
    for (const std::string& file : source.files) {
      const auto need = needed.find(file);
      if (!read_shard(file, need == needed.end() ? "" : need->second)) { absent.insert(file); continue; }
      std::int64_t stale = 0;
      for (TensorInfo& tensor : files_.back().tensors) {
        const auto at = home.find(tensor.name);
        if (at == home.end() || *at->second != file) { ++stale; continue; }
        home.erase(at);
        tensors_.push_back(std::move(tensor));
      }
      files_.back().tensors.clear();
      if (stale > 0) notes_.push_back(text_of(file, ": ", stale, " tensors that the index does not seek there; not used"));
    }
    for (const IndexEntry& entry : source.index) {
      if (absent.count(entry.file) || !home.count(entry.tensor)) continue;
      fail(ErrorCode::bad_input, "the index says that ", entry.file, " holds tensor ", quote(entry.tensor), " but it does not: index and shards are of different releases; fetch both again");
    }
  }

  /// Files that hold a tensor of an MoE layer, with one such tensor.
  static std::map<std::string, std::string> needed_files(const Source& source, const Family& family, const std::string& prefix, const std::vector<std::int64_t>& numbers) {
    std::set<std::string, std::less<>> heads;
    for (const std::int64_t number : numbers) heads.insert(prefix + std::to_string(number) + ".");
    std::map<std::string, std::string> needed;
    for (const IndexEntry& entry : source.index) {
      const std::string_view name = entry.tensor;
      if (!name.starts_with(prefix)) continue;
      const std::size_t dot = name.find('.', prefix.size());
      if (dot == std::string_view::npos || heads.find(name.substr(0, dot + 1)) == heads.end()) continue;
      const std::string_view rest = name.substr(dot + 1);
      if (std::any_of(family.names.scopes.begin(), family.names.scopes.end(), [&](std::string_view scope) { return rest.starts_with(scope); })) needed.emplace(entry.file, entry.tensor);
    }
    return needed;
  }

  bool read_shard(const std::string& file, const std::string& needed_by) {
    try {
      files_.push_back(read_safetensors(path_of(file), file));
      return true;
    } catch (const Error& error) {
      if (!needed_by.empty()) throw Error(error.code(), text_of(error.what(), " (the index says that it holds ", quote(needed_by), ")"));
      notes_.push_back(text_of(file, " holds no tensor of an MoE layer and is not read: ", error.what()));
      return false;
    }
  }

  std::string path_, family_;
  std::vector<std::string> notes_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  std::unique_ptr<TensorTable> table_;
  std::vector<StoredLayer> stored_;
  std::vector<LayerSummary> layers_;
};

}  // namespace

std::shared_ptr<Checkpoint> Checkpoint::open(const std::string& where) { return std::make_shared<OpenCheckpoint>(where); }

}  // namespace motet
