// SPDX-License-Identifier: Apache-2.0
// For tests of kernels: every format x target x arithmetic as a case, activations, one call, and what a result may differ by.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

#include "base/cpu_features.h"
#include "base/numbers.h"
#include "formats/test_matrices.h"
#include "kernels/kernel.h"
#include "kernels/kernel_table.h"

namespace motet {
namespace target_tag {
struct tile_model;
}
#define MOTET_FORMAT(name) \
  namespace format_tag {   \
  struct name;             \
  }
#include "formats/formats.inc"
#undef MOTET_FORMAT
}  // namespace motet

namespace motet::testing {

struct Target {
  const char* name;
  const char* flags;
  const char* needs;
};
inline constexpr Target kTargets[] = {
#define MOTET_TARGET_LINE(name, flags, needs) {#name, flags, needs},
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
};

/// The kernels of `amx` over a software model of the tile instructions (kernels/tile_model.h): tested on processors that have none.
inline constexpr Target kTileModel = {"tile_model", "-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni;-mavx512bf16;-mavx512vbmi",
                                      "AVX-512 F, BW, DQ, VL, VNNI, VBMI and BF16"};

inline const KernelSet* set_of(std::string_view format, const Target& target, KernelArithmetic arithmetic) {
  if (&target != &kTileModel) return find_kernels(format, target.name, arithmetic);
  if (arithmetic != KernelArithmetic::bf16_tile && arithmetic != KernelArithmetic::bf16x2_tile)
    return nullptr;  // as in avx512_bf16
  const KernelSet* sets = nullptr;
#define MOTET_FORMAT(name) \
  if (format == #name) sets = kernels_of<format_tag::name, target_tag::tile_model>();
#include "formats/formats.inc"
#undef MOTET_FORMAT
  const KernelSet* set = sets + static_cast<int>(arithmetic);
  return set->many == nullptr ? nullptr : set;
}

inline bool usable(const Target& target) {
  const std::string flags = target.flags;
  for (std::size_t at = 0; at < flags.size();) {
    const std::size_t end = std::min(flags.find(';', at), flags.size());
    if (!has_instructions(this_cpu(), flags.substr(at, end - at))) return false;
    at = end + 1;
  }
  return true;
}

/// Activations of the set's type, exact in it, 64-byte aligned, zero past cols.
struct Activations {
  std::int64_t cols, stride;
  bool bf16;
  KernelArithmetic arithmetic;
  std::vector<std::byte> bytes;
  std::byte* data;
  Activations(const KernelSet& set, std::int64_t tokens, std::int64_t columns, unsigned seed)
      : cols(columns), stride(0), bf16(set.activation == DType::bf16), arithmetic(set.arithmetic), data(nullptr) {
    const std::int64_t element = bf16 ? 2 : 4;
    stride = (cols + set.k_unit - 1) / set.k_unit * set.k_unit * element;
    stride = (stride + 63) / 64 * 64;
    bytes.assign(static_cast<std::size_t>(tokens * stride + 64), std::byte{0});
    data = bytes.data() + (64 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 64) % 64;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t k = 0; k < cols; ++k) set_value(t, k, normal(random));
  }
  void set_value(std::int64_t token, std::int64_t k, float value) {
    const std::uint16_t half = f32_to_bf16(value);
    if (bf16)
      std::memcpy(data + token * stride + 2 * k, &half, 2);
    else
      std::memcpy(data + token * stride + 4 * k, &value, 4);
  }
  double value(std::int64_t token, std::int64_t k) const {
    const std::byte* row = data + token * stride;
    return bf16 ? static_cast<double>(bf16_to_f32(load_unaligned<std::uint16_t>(row + 2 * k)))
                : static_cast<double>(load_unaligned<float>(row + 4 * k));
  }
};

enum class Which { few, many };
/// Those that a set has.
inline std::vector<Which> ways(const KernelSet& set) {
  std::vector<Which> result;
  if (set.few != nullptr) result.push_back(Which::few);
  if (set.many != nullptr) result.push_back(Which::many);
  return result;
}

/// Scratch of one thread, NaN at first: nothing may be used that was not written. Kept from call to call, the second call is told
/// so.
struct Scratch {
  std::int64_t bytes;
  std::unique_ptr<std::byte, void (*)(void*)> data;
  bool encoded = false;
  Scratch(const KernelSet& set, std::int64_t cols)
      : bytes(set.scratch_bytes(cols)),
        data(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<std::size_t>(bytes + 127) / 64 * 64)), std::free) {
    std::memset(data.get(), 0xFF, static_cast<std::size_t>(bytes + 1));
  }
};

inline std::vector<float> run(const KernelSet& set, Which which, const WeightView& view, std::int64_t row_begin,
                              std::int64_t row_end, const Activations& x, std::int64_t first, std::int64_t tokens,
                              Scratch* kept = nullptr) {
  const std::int64_t rows = row_end - row_begin;
  std::vector<float> out(static_cast<std::size_t>(tokens * rows + 1), -777.0f);
  Scratch own(set, view.cols);
  Scratch& scratch = kept == nullptr ? own : *kept;
  const MatmulArgs args = {.weight = &view,
                           .row_begin = row_begin,
                           .row_end = row_end,
                           .x = x.data + first * x.stride,
                           .x_stride = x.stride,
                           .x_dtype = x.bf16 ? DType::bf16 : DType::f32,
                           .tokens = tokens,
                           .out = out.data(),
                           .out_stride = rows,
                           .scratch = scratch.data.get(),
                           .encoded = scratch.encoded};
  (which == Which::few ? set.few : set.many)(args);
  scratch.encoded = true;
  EXPECT_EQ(out.back(), -777.0f) << "written past the end of the output";
  EXPECT_EQ(scratch.data.get()[scratch.bytes], std::byte{0xFF}) << "written past the end of the scratch";
  out.pop_back();
  return out;
}

/// All rows for tokens [first, first + tokens); `few` in as many calls as it needs.
inline std::vector<float> run_all(const KernelSet& set, Which which, const WeightView& view, const Activations& x,
                                  std::int64_t first, std::int64_t tokens) {
  const std::int64_t step = which == Which::few ? set.max_few : tokens;
  std::vector<float> out;
  for (std::int64_t t = 0; t < tokens; t += step) {
    const std::vector<float> part = run(set, which, view, 0, view.rows, x, first + t, std::min(step, tokens - t));
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

/// fp32 sums of `cols` products, in any order, and a few roundings of scales: worst case, per unit of sum |w x|.
inline double accumulation_bound(std::int64_t cols) { return static_cast<double>(cols + 32) * 0x1p-24; }

/// What the encoding of an activation may lose in a group of kActivationGroup whose largest magnitude is `peak`: half a step, and
/// 2^-7 of one for the roundings of the scale, its inverse and their product. 0 for arithmetics on activations as they are.
inline double encoding_step(KernelArithmetic arithmetic, float peak) {
  if (arithmetic != KernelArithmetic::int16_dot && arithmetic != KernelArithmetic::int8_dot) return 0;
  const float step = std::max(peak / (arithmetic == KernelArithmetic::int16_dot ? 32767.0f : 127.0f), 0x1p-124f);
  return static_cast<double>(step) * (0.5 + 0x1p-7);
}

/// What the encoding of a token's activations x may change in their product with a row of weights.
inline double encoding_bound(KernelArithmetic arithmetic, const double* row, const double* x, std::int64_t cols) {
  double bound = 0;
  if (arithmetic == KernelArithmetic::bf16x2_tile) {  // x = high + low to 2^-17; parts below 2^-126 are lost
    for (std::int64_t k = 0; k < cols; ++k) bound += std::fabs(row[k]) * (std::fabs(x[k]) * 0x1p-17 + 0x1p-126);
    return bound;
  }
  if (encoding_step(arithmetic, 1) == 0) return 0;
  for (std::int64_t k0 = 0; k0 < cols; k0 += kActivationGroup) {
    double weights = 0, peak = 0;
    for (std::int64_t k = k0; k < std::min(k0 + kActivationGroup, cols); ++k) {
      weights += std::fabs(row[k]);
      peak = std::max(peak, std::fabs(x[k]));
    }
    bound += weights * encoding_step(arithmetic, static_cast<float>(peak));
  }
  return bound;
}
/// An activation near 1 that no arithmetic's encoding changes when the others of its group are zero.
inline float exact_one(KernelArithmetic arithmetic) {
  return arithmetic == KernelArithmetic::int16_dot  ? 32767.0f / 32768.0f
         : arithmetic == KernelArithmetic::int8_dot ? 127.0f / 128.0f
                                                    : 1.0f;
}

/// What the products of the first `tokens` tokens are in double, and how far from that an output may be. [token][row]
struct Truth {
  std::int64_t rows;
  std::vector<double> sums, bounds;
  Truth(const Format& format, const WeightView& weight, const Activations& activations, std::int64_t tokens)
      : rows(weight.rows), sums(static_cast<std::size_t>(tokens * rows)), bounds(sums.size()) {
    const std::int64_t cols = weight.cols;
    std::vector<double> xs(static_cast<std::size_t>(tokens * cols)), decoded(static_cast<std::size_t>(cols));
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t k = 0; k < cols; ++k) xs[static_cast<std::size_t>(t * cols + k)] = activations.value(t, k);
    const double* const row = decoded.data();
    for (std::int64_t n = 0; n < rows; ++n) {
      format.decode(weight, n, 0, cols, decoded.data());
      for (std::int64_t t = 0; t < tokens; ++t) {
        const double* const x = xs.data() + t * cols;
        double sum = 0, magnitude = 0;
        for (std::int64_t k = 0; k < cols; ++k) {
          const double product = row[k] * x[k];
          sum += product;
          magnitude += std::fabs(product);
        }
        const auto at = static_cast<std::size_t>(t * rows + n);
        sums[at] = sum;
        bounds[at] = accumulation_bound(cols) * magnitude + encoding_bound(activations.arithmetic, row, x, cols);
      }
    }
  }
};

/// The first output of the first `tokens` tokens that is further from the truth than its bound; "" when none is.
inline std::string first_wrong(const Truth& truth, std::int64_t tokens, const std::vector<float>& out) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(tokens * truth.rows); ++i) {
    const double got = static_cast<double>(out[i]);
    if (!(std::fabs(got - truth.sums[i]) <= truth.bounds[i]))
      return "row " + std::to_string(static_cast<std::int64_t>(i) % truth.rows) + ", token " +
             std::to_string(static_cast<std::int64_t>(i) / truth.rows) + ": " + std::to_string(got) + " instead of " +
             std::to_string(truth.sums[i]);
  }
  return "";
}

inline std::vector<std::int64_t> widths(const Format& format) {
  if (is_plain(format.facts)) return {1, 31, 40, 88, 703, 1856};
  if (is_packed(format.facts))
    return {format.facts.block_cols, 96, 112 / format.facts.block_cols * format.facts.block_cols, 720 / 32 * 32, 2880};
  return {1, 40, 88, 320, 704, 1999};
}

struct Case {
  const Format* format;
  const Target* target;
  KernelArithmetic arithmetic;
};
inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Format* format : all_formats()) {
    const auto add = [&](const Target& target) {
      for (const KernelArithmetic arithmetic : kAllArithmetics)
        if (set_of(format->facts.name, target, arithmetic) != nullptr) cases.push_back({format, &target, arithmetic});
    };
    for (const Target& target : kTargets) add(target);
    add(kTileModel);
  }
  return cases;
}

/// One case; skipped where the machine cannot run the target.
class KernelCase : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Target& target = *GetParam().target;
    if (!usable(target)) GTEST_SKIP() << "target " << target.name << " needs " << target.needs;
    set_ = set_of(format().facts.name, target, GetParam().arithmetic);
  }
  const Format& format() const { return *GetParam().format; }
  const KernelSet& set() const { return *set_; }

 private:
  const KernelSet* set_ = nullptr;
};

inline std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(info.param.format->facts.name) + "_" + info.param.target->name + "_" +
         std::string(name_of(info.param.arithmetic));
}

}  // namespace motet::testing
