// SPDX-License-Identifier: Apache-2.0
// How an exchange rounds, copies and sums rows, on every target, against the scalar number types.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/numbers.h"
#include "kernels/elements.h"

namespace motet {
namespace {

std::vector<const ElementKernels*> usable_elements() {
  std::vector<const ElementKernels*> out;
  const auto add = [&](const char* name, const std::string& flags) {
    for (std::size_t at = 0; at < flags.size();) {
      const std::size_t end = std::min(flags.find(';', at), flags.size());
      if (!has_instructions(this_cpu(), flags.substr(at, end - at))) return;
      at = end + 1;
    }
    out.push_back(find_elements(name));
  };
#define MOTET_TARGET_LINE(name, flags, needs) add(#name, flags);
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
  return out;
}

/// Calls body(kernels, stores, count, shift): lengths around a vector and a block, places that no vector is aligned to.
template <class Body>
void for_each_way(Body body) {
  for (const ElementKernels* elements : usable_elements())
    for (const Stores stores : {Stores::cached, Stores::around})
      for (const std::int64_t count : {1, 2, 7, 8, 17, 127, 128, 129, 1000})
        for (const std::int64_t shift : {0, 1, 3}) {
          SCOPED_TRACE(std::string(elements->target) + (stores == Stores::around ? ", around" : ", cached") + ", count " +
                       std::to_string(count) + ", shift " + std::to_string(shift));
          body(*elements, stores, count, static_cast<std::size_t>(shift));
        }
}

/// Any bits, among them what rounding and sums treat apart.
std::vector<float> values_of(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  const float special[] = {0.0f,
                           -0.0f,
                           1.00390625f,
                           1.01171875f,
                           std::numeric_limits<float>::infinity(),
                           1e-45f,
                           3.4028235e38f,
                           -1e-39f,
                           f32_of_bits(0x7F800001u),
                           f32_of_bits(0xFFFFFFFFu)};
  std::vector<float> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(random() % 3 == 0 ? special[random() % std::size(special)]
                                    : f32_of_bits((static_cast<std::uint32_t>(random()) & 0x83FFFFFFu) + 0x3E000000u));
  return out;
}

bool same(float a, float b) { return std::isnan(a) ? std::isnan(b) : bits_of_f32(a) == bits_of_f32(b); }

constexpr std::byte kUntouched{0xA5};

TEST(Rows, AreCopiedAndNothingBesideThem) {
  for_each_way([](const ElementKernels& elements, Stores stores, std::int64_t count, std::size_t shift) {
    const auto bytes = static_cast<std::size_t>(count);
    std::vector<std::byte> from(bytes + 1), to(bytes + 64, kUntouched);
    for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 31);
    elements.copy(from.data(), count, to.data() + shift, stores);
    EXPECT_TRUE(std::equal(from.begin(), from.begin() + count, to.data() + shift));
    EXPECT_EQ(std::count(to.begin() + static_cast<std::ptrdiff_t>(shift) + count, to.end(), kUntouched),
              static_cast<std::ptrdiff_t>(64 - shift));
    EXPECT_EQ(std::count(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(shift), kUntouched),
              static_cast<std::ptrdiff_t>(shift));
  });
}

TEST(Rows, AreRoundedToTheWireAsNumbersAre) {
  for_each_way([](const ElementKernels& elements, Stores stores, std::int64_t count, std::size_t shift) {
    const std::vector<float> values = values_of(static_cast<std::size_t>(count), 5);
    for (const DType wire : {DType::bf16, DType::f32}) {
      const std::size_t bytes = wire == DType::bf16 ? 2 : 4;
      std::vector<std::byte> out((values.size() + 8) * bytes, kUntouched);
      elements.send_as(wire, values.data(), count, out.data() + shift * bytes, stores);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::byte* const at = out.data() + (shift + i) * bytes;
        if (wire == DType::bf16)
          ASSERT_EQ(load_unaligned<std::uint16_t>(at), f32_to_bf16(values[i])) << bits_of_f32(values[i]);
        else
          ASSERT_EQ(std::memcmp(at, &values[i], 4), 0) << i;
      }
      EXPECT_EQ(std::count(out.end() - static_cast<std::ptrdiff_t>((8 - shift) * bytes), out.end(), kUntouched),
                static_cast<std::ptrdiff_t>((8 - shift) * bytes));
    }
  });
}

/// s = fp32(s + fp32(w y)) from +0 over terms of which every second is this rank's own.
std::vector<float> sum_of(DType wire, const std::vector<std::vector<float>>& rows, const std::vector<float>& weights,
                          bool weighed) {
  std::vector<float> sums;
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    float sum = 0;
    for (std::size_t r = 0; r < rows.size() - 1; ++r) {
      const float value = wire == DType::bf16 ? bf16_to_f32(f32_to_bf16(rows[r][i])) : rows[r][i];
      const float term = weighed ? weights[r] * value : value;
      sum = sum + term;
    }
    sums.push_back(sum);
  }
  return sums;
}

TEST(L15, RowsAreSummedInTheirOrderWithTheSameBitsOnEveryTarget) {
  for_each_way([](const ElementKernels& elements, Stores stores, std::int64_t count, std::size_t shift) {
    const auto size = static_cast<std::size_t>(count);
    for (const DType wire : {DType::bf16, DType::f32})
      for (const bool weighed : {false, true})
        for (std::size_t terms = 0; terms < 4; ++terms) {
          std::vector<std::vector<float>> rows(terms + 1);
          std::vector<std::vector<std::byte>> stored(terms);
          for (std::size_t r = 0; r <= terms; ++r) rows[r] = values_of(size, static_cast<unsigned>(r));
          const std::vector<float> weights = {0.3f, -1.7f, 1e-3f};
          std::vector<SumTerm> sum(terms);
          for (std::size_t r = 0; r < terms; ++r) {
            const std::size_t bytes = wire == DType::bf16 ? 2 : 4;
            stored[r].resize((size + shift) * bytes);
            find_elements("generic")->store_as(wire, rows[r].data(), count, stored[r].data() + shift * bytes);
            if (r % 2 == 0) sum[r].stored = stored[r].data() + shift * bytes;
            if (r % 2 == 1) sum[r].unrounded = rows[r].data();
            if (weighed) sum[r].weight = &weights[r];
          }
          const std::vector<float> truth = sum_of(wire, rows, weights, weighed);
          std::vector<float> out(size + 4, -7.0f);
          elements.sum_rows(wire, sum, count, out.data() + shift, stores);
          for (std::size_t i = 0; i < size; ++i) ASSERT_TRUE(same(out[shift + i], truth[i])) << terms << " terms, " << i;
          EXPECT_EQ(out[size + shift], -7.0f);
          if (terms < 2) continue;
          elements.sum_rows(wire, sum, count, rows[1].data(), stores);  // where a term is
          for (std::size_t i = 0; i < size; ++i) ASSERT_TRUE(same(rows[1][i], truth[i])) << terms << " terms, " << i;
        }
  });
}

}  // namespace
}  // namespace motet
