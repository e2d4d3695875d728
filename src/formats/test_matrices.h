// SPDX-License-Identifier: Apache-2.0
// Matrices for tests: every block has an exponent of its own, every layout that checkpoints use, and each array of bytes ends at
// an inaccessible page, so that a read past a mapped file's end crashes.
#pragma once

#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "formats/format.h"
#include "formats/packed.h"

namespace motet::testing {

/// A copy of some bytes that ends where an inaccessible page begins.
class GuardedBytes {
 public:
  explicit GuardedBytes(const std::vector<std::byte>& bytes) {
    constexpr std::size_t page = 4096;
    size_ = (bytes.size() + page - 1) / page * page + page;
    base_ = static_cast<std::byte*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + size_ - page, page, PROT_NONE) != 0) throw std::runtime_error("mmap failed");
    data_ = base_ + size_ - page - bytes.size();
    std::memcpy(data_, bytes.data(), bytes.size());
  }
  ~GuardedBytes() { munmap(base_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::byte* data() { return data_; }

 private:
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

enum class Layout { rows, doubled_rows, columns, doubled_columns, packed, doubled_packed };
inline constexpr Layout kLayouts[] = {Layout::rows,   Layout::doubled_rows,  Layout::columns, Layout::doubled_columns,
                                      Layout::packed, Layout::doubled_packed};

inline const char* name_of(Layout layout) {
  constexpr const char* names[] = {"rows", "doubled_rows", "columns", "doubled_columns", "packed", "doubled_packed"};
  return names[static_cast<int>(layout)];
}

/// Random values whose magnitude changes by powers of two from one run of 16 columns (and one row) to the next.
inline std::vector<float> values_with_block_exponents(std::int64_t rows, std::int64_t cols, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < cols; ++k)
      values[static_cast<std::size_t>(r * cols + k)] =
          std::ldexp(uniform(random), static_cast<int>((3 * r + k / 16 * 5 + k / 128) % 7) - 3);
  return values;
}

/// An encoded matrix laid out anew against inaccessible pages. The view keeps the scales' shape; encoded.view is what the format's
/// decoder reads.
struct TestMatrix {
  EncodedMatrix encoded;
  std::unique_ptr<GuardedBytes> codes, scales;
  WeightView view;
};

/// Moves the codes of an encoded matrix into `layout`; nothing when the format does not have it (packed formats lie in rows).
inline std::unique_ptr<TestMatrix> lay_out(EncodedMatrix encoded, Layout layout) {
  auto result = std::make_unique<TestMatrix>();
  result->encoded = std::move(encoded);
  const WeightView& from = result->encoded.view;
  const std::int64_t element = from.col_stride, row_bytes = from.row_stride;
  const bool doubled = layout == Layout::doubled_rows || layout == Layout::doubled_columns;
  const bool columns = layout == Layout::columns || layout == Layout::doubled_columns;
  if (columns && element == 0) return nullptr;
  WeightView view = from;
  const std::int64_t unit = columns ? element : row_bytes, units = columns ? from.rows : from.rows * 1;
  if (columns) {
    view.row_stride = element * (doubled ? 2 : 1);
    view.col_stride = units * view.row_stride;
  } else {
    view.row_stride = row_bytes * (doubled ? 2 : 1);
  }
  // Exactly the bytes that belong to the matrix: the second of a doubled pair is missing at the end.
  const std::int64_t last =
      columns ? (from.rows - 1) * view.row_stride + (from.cols - 1) * view.col_stride : (from.rows - 1) * view.row_stride;
  std::vector<std::byte> bytes(static_cast<std::size_t>(last + unit), std::byte{0xFF});  // what lies between is NaN
  for (std::int64_t r = 0; r < from.rows; ++r) {
    if (!columns) {
      std::memcpy(bytes.data() + r * view.row_stride, from.codes + r * row_bytes, static_cast<std::size_t>(row_bytes));
    } else {
      for (std::int64_t k = 0; k < from.cols; ++k)
        std::memcpy(bytes.data() + r * view.row_stride + k * view.col_stride, from.codes + r * row_bytes + k * element,
                    static_cast<std::size_t>(element));
    }
  }
  result->codes = std::make_unique<GuardedBytes>(bytes);
  view.codes = result->codes->data();
  if (from.scales != nullptr) {
    result->scales = std::make_unique<GuardedBytes>(result->encoded.scales);
    view.scales = result->scales->data();
  }
  result->view = view;
  return result;
}

/// Panels of the matrix, each followed by another's when doubled; nothing when its scale blocks cannot be packed.
inline std::unique_ptr<TestMatrix> pack(const Format& format, EncodedMatrix encoded, bool doubled) {
  const WeightView& from = encoded.view;
  ProjectionSpec projection;
  projection.block_rows = from.block_rows, projection.block_cols = from.block_cols;
  if (packing_declined(format.facts, projection)) return nullptr;
  const std::int64_t panels = (from.rows + kPanelRows - 1) / kPanelRows,
                     bytes = panel_layout(format.facts, from.cols, from.block_cols).bytes, stride = bytes * (doubled ? 2 : 1);
  std::vector<std::byte> packed(static_cast<std::size_t>((panels - 1) * stride + bytes), std::byte{0xFF});
  pack_panels(format.facts, from, 0, panels, packed.data(), stride);
  auto result = std::make_unique<TestMatrix>();
  result->codes = std::make_unique<GuardedBytes>(packed);
  result->view = packed_view(from, result->codes->data(), stride);
  result->encoded = std::move(encoded);
  return result;
}

inline std::unique_ptr<TestMatrix> make_matrix(const Format& format, std::int64_t rows, std::int64_t cols, Layout layout,
                                               unsigned seed) {
  const std::vector<float> values = values_with_block_exponents(rows, cols, seed);
  EncodedMatrix encoded;
  format.encode(values.data(), rows, cols, encoded);
  if (layout == Layout::packed || layout == Layout::doubled_packed)
    return pack(format, std::move(encoded), layout == Layout::doubled_packed);
  return lay_out(std::move(encoded), layout);
}

}  // namespace motet::testing
