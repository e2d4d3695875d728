// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <unordered_set>

#include "base/dtype.h"
#include "base/json_reader.h"
#include "base/math.h"
#include "checkpoint/file_kind.h"
#include "checkpoint/text.h"

namespace motet {
namespace {

[[noreturn]] void refuse_header(const std::string& name, const std::string& tensor, const std::string& problem) {
  fail(ErrorCode::bad_input, name, ": ", tensor.empty() ? std::string() : "tensor " + quote(tensor) + ": ", problem,
       "; the header breaks the safetensors format: fetch or write the file again");
}

/// A whole number of the header that is not negative.
std::int64_t read_extent(JsonReader& reader, const std::string& name, const std::string& tensor) {
  const JsonReader::Number number = reader.read_number();
  if (number.kind == JsonReader::Number::real) refuse_header(name, tensor, text_of("the number ", number.real_value, " is not whole"));
  if (number.kind == JsonReader::Number::unsigned_integer) refuse_header(name, tensor, text_of("the number ", number.natural, " exceeds 63 bits"));
  if (number.integer < 0) refuse_header(name, tensor, text_of("the number ", number.integer, " is negative"));
  return number.integer;
}

std::vector<std::int64_t> read_extents(JsonReader& reader, std::size_t most, const char* key, const std::string& name, const std::string& tensor) {
  std::vector<std::int64_t> extents;
  reader.open_array();
  while (reader.next_item()) {
    if (extents.size() == most) refuse_header(name, tensor, text_of("'", key, "' holds more than ", most, " numbers"));
    extents.push_back(read_extent(reader, name, tensor));
  }
  return extents;
}

/// Elements x bits must be the bytes that the offsets span.
void check_bytes(const TensorInfo& tensor, const std::string& name) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) {
    if (!checked_mul(elements, extent, &elements)) refuse_header(name, tensor.name, "the product of shape " + shape_text(tensor.shape) + " does not fit 64 bits");
  }
  const std::optional<std::int64_t> bytes = bytes_of(tensor.dtype, elements);
  if (bytes && *bytes == tensor.bytes) return;
  const std::string what = text_of("shape ", shape_text(tensor.shape), " of ", name_of(tensor.dtype));
  if (!bytes) refuse_header(name, tensor.name, what + " fills no whole number of bytes that fits 64 bits");
  refuse_header(name, tensor.name, text_of(what, " needs ", *bytes, " bytes but data_offsets span ", tensor.bytes));
}

/// {"dtype": .., "shape": [..], "data_offsets": [begin, end]}; offset relative to the data buffer.
TensorInfo read_tensor(JsonReader& reader, const std::string& key, const std::string& name) {
  TensorInfo tensor;
  tensor.name = key;
  tensor.file = name;
  bool dtype_seen = false, shape_seen = false, offsets_seen = false;
  reader.open_object();
  while (const auto field = reader.next_key()) {
    bool* const seen = *field == "dtype" ? &dtype_seen : *field == "shape" ? &shape_seen : *field == "data_offsets" ? &offsets_seen : nullptr;
    if (!seen) refuse_header(name, key, "unknown key " + quote(*field));
    if (*seen) refuse_header(name, key, "duplicate key " + quote(*field));
    *seen = true;
    if (seen == &dtype_seen) {
      const std::string_view spelling = reader.read_string();
      const std::optional<DType> dtype = dtype_from_name(spelling);
      if (!dtype) refuse_header(name, key, "unknown dtype " + quote(spelling));
      tensor.dtype = *dtype;
    } else if (seen == &shape_seen) {
      tensor.shape = read_extents(reader, 64, "shape", name, key);
    } else {
      const std::vector<std::int64_t> offsets = read_extents(reader, 2, "data_offsets", name, key);
      if (offsets.size() != 2) refuse_header(name, key, "'data_offsets' must hold two numbers");
      if (offsets[1] < offsets[0]) refuse_header(name, key, text_of("data_offsets end ", offsets[1], " lies before begin ", offsets[0]));
      tensor.offset = offsets[0];
      tensor.bytes = offsets[1] - offsets[0];
    }
  }
  if (!dtype_seen || !shape_seen || !offsets_seen) {
    refuse_header(name, key, std::string("no key '") + (!dtype_seen ? "dtype" : !shape_seen ? "shape" : "data_offsets") + "'");
  }
  check_bytes(tensor, name);
  return tensor;
}

/// A map of strings; its content is nobody's business.
void read_metadata(JsonReader& reader) {
  reader.open_object();
  while (reader.next_key()) reader.read_string();
}

std::vector<TensorInfo> read_tensors(std::string_view json, const std::string& name) {
  const std::string what = "header of " + name;
  JsonReader reader(json, what);
  std::vector<TensorInfo> tensors;
  std::unordered_set<std::string> names;
  reader.open_object();
  while (const auto key = reader.next_key()) {
    const auto [place, fresh] = names.emplace(*key);
    if (!fresh) refuse_header(name, "", "duplicate key " + quote(*place));
    if (*place == "__metadata__") read_metadata(reader);
    else tensors.push_back(read_tensor(reader, *place, name));
  }
  reader.finish();
  return tensors;
}

/// Absolute offsets, after checking that the tensors, in order of their bytes, tile the data buffer.
void place_tensors(std::vector<TensorInfo>& tensors, std::int64_t data, std::int64_t file_bytes, const std::string& name) {
  const auto before = [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;     // empty tensors before the one that starts there
  };
  if (!std::is_sorted(tensors.begin(), tensors.end(), before)) std::stable_sort(tensors.begin(), tensors.end(), before);
  const std::int64_t data_bytes = file_bytes - data;
  std::int64_t end = 0;
  for (TensorInfo& tensor : tensors) {
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
      fail(ErrorCode::bad_input, name, ": tensor ", quote(tensor.name), " needs bytes ", tensor.offset, " to ", tensor.offset + tensor.bytes,
           " of the data buffer but the file holds ", data_bytes, ": an unfinished download, or a broken header; fetch the file again");
    }
    if (tensor.offset < end) refuse_header(name, tensor.name, text_of("its bytes begin at ", tensor.offset, " and overlap a tensor that ends at ", end));
    if (tensor.offset > end) refuse_header(name, tensor.name, text_of("its bytes begin at ", tensor.offset, " and leave a hole after ", end));
    end = tensor.offset + tensor.bytes;
    tensor.offset += data;
  }
  if (end != data_bytes) refuse_header(name, "", text_of(data_bytes - end, " bytes trail the last tensor"));
}

}  // namespace

std::vector<TensorInfo> parse_safetensors_header(std::string_view json, std::int64_t file_bytes, const std::string& name) {
  if (json.empty() || json.front() != '{') refuse_header(name, "", "the header must start with '{'");
  std::vector<TensorInfo> tensors = read_tensors(json, name);
  place_tensors(tensors, 8 + static_cast<std::int64_t>(json.size()), file_bytes, name);
  return tensors;
}

SafetensorsFile read_safetensors(const std::string& path, const std::string& name) {
  const OpenFile file(path, name);
  const std::int64_t bytes = file.identity().bytes;
  std::string start(static_cast<std::size_t>(std::min<std::int64_t>(bytes, 512)), '\0');
  file.read(0, start.data(), static_cast<std::int64_t>(start.size()));
  if (const std::string kind = foreign_kind(start); !kind.empty()) {
    fail(ErrorCode::bad_input, name, " is no safetensors file but ", kind);
  }
  if (bytes < 8) fail(ErrorCode::bad_input, name, " has ", bytes, " bytes and a safetensors file has 8 at least: an unfinished download; fetch it again");
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(start[static_cast<std::size_t>(i)]);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    fail(ErrorCode::bad_input, name, ": the header length is ", length, " bytes and may be ", kMaxHeaderBytes,
         " at most: this is no safetensors file, or a broken one; fetch it again");
  }
  if (start.size() > 8 && length > 0 && start[8] != '{') refuse_header(name, "", "the header must start with '{'");
  if (static_cast<std::int64_t>(length) > bytes - 8) {
    fail(ErrorCode::bad_input, name, " has ", bytes, " bytes but its header alone needs ", length + 8, ": an unfinished download; fetch it again");
  }
  std::string json(static_cast<std::size_t>(length), '\0');
  file.read(8, json.data(), static_cast<std::int64_t>(length));
  return {name, path, file.identity(), parse_safetensors_header(json, bytes, name)};
}

}  // namespace motet
