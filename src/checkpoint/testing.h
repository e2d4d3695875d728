// SPDX-License-Identifier: Apache-2.0
// For tests: temporary directories, safetensors files written by hand, and small checkpoints to break. Not part of the library.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"

namespace motet::testing {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "motet-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string str() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

/// One tensor to write. Without data its bytes follow from name and position, positive and finite in every float type.
struct TestTensor {
  std::string name;
  DType dtype = DType::bf16;
  std::vector<std::int64_t> shape;
  std::string data;
  std::int64_t bytes() const {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    return bytes_of(dtype, count).value();
  }
};

inline std::string u64_text(std::uint64_t value) {
  std::string out(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

/// Header JSON of tensors that lie one after another.
inline std::string header_of(const std::vector<TestTensor>& tensors) {
  Json header = Json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::int64_t at = 0;
  for (const TestTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, at + tensor.bytes()}}};
    at += tensor.bytes();
  }
  return header.dump();
}

/// Bytes of a tensor without data: floats are 2^-3 .. 2^3 with a pattern, other bytes small.
inline std::string filler(const TestTensor& tensor) {
  std::string out(static_cast<std::size_t>(tensor.bytes()), '\0');
  std::uint32_t state = static_cast<std::uint32_t>(std::hash<std::string>{}(tensor.name)) | 1u;
  const std::size_t element = tensor.dtype == DType::f32 ? 4 : tensor.dtype == DType::bf16 || tensor.dtype == DType::f16 ? 2 : 1;
  for (std::size_t i = 0; i < out.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    const bool top = i % element == element - 1;
    out[i] = static_cast<char>(element == 1 ? 0x38 + (state >> 28) : top ? 0x3e + (state >> 31) : state >> 24 & 0x7f);
  }
  return out;
}

inline std::string file_text(const std::vector<TestTensor>& tensors) {
  const std::string header = header_of(tensors);
  std::string out = u64_text(header.size()) + header;
  for (const TestTensor& tensor : tensors) out += tensor.data.empty() ? filler(tensor) : tensor.data;
  return out;
}

/// A file of the full size without its bytes: holes read as zero and take no space.
inline void write_sparse(const std::string& path, const std::vector<TestTensor>& tensors) {
  const std::string header = header_of(tensors);
  std::int64_t bytes = 8 + static_cast<std::int64_t>(header.size());
  for (const TestTensor& tensor : tensors) bytes += tensor.bytes();
  write_file(path, u64_text(header.size()) + header);
  if (::truncate(path.c_str(), bytes) != 0) throw std::runtime_error("truncate failed");
}

/// A checkpoint to write, after a test changed it.
struct TestCheckpoint {
  Json config;
  std::vector<TestTensor> tensors;

  TestTensor& operator[](const std::string& name) {
    for (TestTensor& tensor : tensors) if (tensor.name == name) return tensor;
    throw std::runtime_error("no tensor " + name);
  }
  void add(const std::string& name, DType dtype, std::vector<std::int64_t> shape, std::string data = {}) { tensors.push_back({name, dtype, std::move(shape), std::move(data)}); }
  void remove(const std::string& name) {
    std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == name; });
  }
  void write(const TempDir& dir) const {
    write_file(dir / "config.json", config.dump());
    write_file(dir / "model.safetensors", file_text(tensors));
  }
  /// Shard i % shards holds tensor i; the index names them.
  void write_shards(const TempDir& dir, std::size_t shards) const {
    write_file(dir / "config.json", config.dump());
    std::vector<std::vector<TestTensor>> parts(shards);
    Json map = Json::object();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      parts[i % shards].push_back(tensors[i]);
      map[tensors[i].name] = shard_name(i % shards, shards);
    }
    for (std::size_t i = 0; i < shards; ++i) write_file(dir / shard_name(i, shards), file_text(parts[i]));
    write_file(dir / "model.safetensors.index.json", Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  }
  static std::string shard_name(std::size_t i, std::size_t shards) { return "model-" + std::to_string(i + 1) + "-of-" + std::to_string(shards) + ".safetensors"; }
};

/// gpt-oss in MXFP4: E 4, k 2, H 64, I 96.
inline TestCheckpoint gpt_oss_checkpoint(std::int64_t layers = 1, std::int64_t hidden = 64, std::int64_t intermediate = 96, std::int64_t experts = 4) {
  TestCheckpoint out;
  out.config = {{"model_type", "gpt_oss"}, {"hidden_size", hidden}, {"intermediate_size", intermediate}, {"num_local_experts", experts},
                {"num_experts_per_tok", experts < 4 ? experts : experts == 4 ? 2 : 4}, {"num_hidden_layers", layers}, {"quantization_config", {{"quant_method", "mxfp4"}}}};
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".mlp.";
    out.add(p + "experts.gate_up_proj_blocks", DType::u8, {experts, 2 * intermediate, hidden / 32, 16});
    out.add(p + "experts.gate_up_proj_scales", DType::u8, {experts, 2 * intermediate, hidden / 32});
    out.add(p + "experts.gate_up_proj_bias", DType::bf16, {experts, 2 * intermediate});
    out.add(p + "experts.down_proj_blocks", DType::u8, {experts, hidden, intermediate / 32, 16});
    out.add(p + "experts.down_proj_scales", DType::u8, {experts, hidden, intermediate / 32});
    out.add(p + "experts.down_proj_bias", DType::bf16, {experts, hidden});
    out.add(p + "router.weight", DType::bf16, {experts, hidden});
    out.add(p + "router.bias", DType::bf16, {experts});
  }
  out.add("model.norm.weight", DType::bf16, {hidden});
  return out;
}

/// What the tensors of one per-expert matrix are; `module` without suffix.
using MatrixWriter = std::function<void(TestCheckpoint&, const std::string& module, std::int64_t rows, std::int64_t cols)>;

inline void write_bf16(TestCheckpoint& out, const std::string& module, std::int64_t rows, std::int64_t cols) { out.add(module + ".weight", DType::bf16, {rows, cols}); }

inline void write_nvfp4(TestCheckpoint& out, const std::string& module, std::int64_t rows, std::int64_t cols) {
  out.add(module + ".weight", DType::u8, {rows, cols / 2});
  out.add(module + ".weight_scale", DType::f8_e4m3, {rows, cols / 16});
  out.add(module + ".weight_scale_2", DType::f32, {});
  out.add(module + ".input_scale", DType::f32, {});
}

inline void write_fp8(TestCheckpoint& out, const std::string& module, std::int64_t rows, std::int64_t cols) {
  out.add(module + ".weight", DType::f8_e4m3, {rows, cols});
  out.add(module + ".weight_scale_inv", DType::f32, {(rows + 127) / 128, (cols + 127) / 128});
}

/// Qwen3-MoE, per expert: E 4, k 2, H 160, I 144 by default.
inline TestCheckpoint qwen3_checkpoint(const MatrixWriter& write = write_bf16, std::int64_t layers = 1, std::int64_t hidden = 160, std::int64_t intermediate = 144, std::int64_t experts = 4) {
  TestCheckpoint out;
  out.config = {{"model_type", "qwen3_moe"}, {"hidden_size", hidden}, {"moe_intermediate_size", intermediate}, {"num_experts", experts},
                {"num_experts_per_tok", 2}, {"num_hidden_layers", layers}, {"norm_topk_prob", true}};
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".mlp.";
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::string x = p + "experts." + std::to_string(e) + ".";
      write(out, x + "gate_proj", intermediate, hidden);
      write(out, x + "up_proj", intermediate, hidden);
      write(out, x + "down_proj", hidden, intermediate);
    }
    out.add(p + "gate.weight", DType::bf16, {experts, hidden});
  }
  out.add("lm_head.weight", DType::bf16, {8, hidden});
  return out;
}

}  // namespace motet::testing
