// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "checkpoint/testing.h"

namespace motet {
namespace {

using testing::TempDir;
using testing::u64_text;

/// The sentence that the header of a file with `data` bytes behind it is refused with.
std::string refusal(std::string_view json, std::int64_t data) {
  try {
    parse_safetensors_header(json, 8 + static_cast<std::int64_t>(json.size()) + data, "x.safetensors");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    return error.what();
  }
  return "accepted";
}

/// The sentence that a whole file is refused with.
std::string file_refusal(const std::string& bytes) {
  const TempDir dir;
  testing::write_file(dir / "x.safetensors", bytes);
  try {
    read_safetensors(dir / "x.safetensors", "x.safetensors");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    return error.what();
  }
  return "accepted";
}

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* const word : words) EXPECT_NE(text.find(word), std::string::npos) << "no '" << word << "' in: " << text;
}

TEST(Safetensors, ReadsTensorsInOrderOfTheirBytes) {
  const std::string json = R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[6,10]},"a":{"shape":[3],"dtype":"BF16","data_offsets":[0,6]},"e":{"dtype":"U8","shape":[0,7],"data_offsets":[6,6]}}  )";
  const auto tensors = parse_safetensors_header(json, 8 + static_cast<std::int64_t>(json.size()) + 10, "x");
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, DType::bf16);
  EXPECT_EQ(tensors[0].offset, 8 + static_cast<std::int64_t>(json.size()));
  EXPECT_EQ(tensors[0].bytes, 6);
  EXPECT_EQ(tensors[1].name, "e");
  EXPECT_EQ(tensors[2].name, "b");
  EXPECT_TRUE(tensors[2].shape.empty());
}

TEST(Safetensors, RefusesEachBrokenHeaderByItsRule) {
  struct Case { const char* json; std::int64_t data; std::initializer_list<const char*> words; };
  const Case cases[] = {
      {R"( {"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"must start with '{'"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, {"duplicate key 'a'"}},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"'a'", "duplicate key 'dtype'"}},
      {R"({"a":{"dtype":"Q8","shape":[1],"data_offsets":[0,1]}})", 1, {"'a'", "unknown dtype 'Q8'"}},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1, {"'a'", "[2]", "needs 2 bytes", "span 1"}},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, {"'a'", "no whole number of bytes"}},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, {"'a'", "does not fit 64 bits"}},
      {R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0, {"'a'", "fits 64 bits"}},
      {R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", 1, {"x.safetensors"}},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1, {"'a'", "18446744073709551615", "exceeds 63 bits"}},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, {"'a'", "-1", "negative"}},
      {R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, {"'a'", "1.5", "not whole"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, {"'a'", "end 0 lies before begin 1"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, {"'a'", "two numbers"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, {"'a'", "data_offsets"}},
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1, {"'a'", "no key 'data_offsets'"}},
      {R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, {"'a'", "no key 'dtype'"}},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, {"'a'", "no key 'shape'"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]}})", 1, {"'a'", "unknown key 'stride'"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, {"'a'", "hole after 0"}},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3, {"'b'", "overlap"}},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2, {"'b'", "overlap"}},
      {R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 8, {"'a'", "holds 8", "unfinished download"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}})", 8, {"'a'", "holds 8"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3, {"2 bytes trail"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} x)", 1, {"x.safetensors"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1, {"x.safetensors"}},
      {R"({"a":[]})", 0, {"x.safetensors"}},
      {R"({"__metadata__":{"format":1}})", 0, {"x.safetensors"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.json);
    expect_words(refusal(one.json, one.data), one.words);
  }
  EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), "accepted");
}

TEST(Safetensors, RefusesALongHeaderBeforeReadingIt) {
  expect_words(file_refusal(u64_text(100'000'001) + "{" + std::string(100, ' ')), {"100000001", "100000000 at most"});
  expect_words(file_refusal(u64_text(UINT64_MAX) + "{}"), {"18446744073709551615"});
}

TEST(Safetensors, NamesFilesForWhatTheyAre) {
  expect_words(file_refusal("version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 99\n"), {"Git LFS pointer", "git lfs pull"});
  expect_words(file_refusal("\n <!DOCTYPE html><html>login</html>"), {"HTML page"});
  expect_words(file_refusal("<html><body>404</body></html>"), {"HTML page"});
  expect_words(file_refusal("<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>"), {"XML page"});
  expect_words(file_refusal(std::string("PK\x03\x04\0\0\0\0\0\0archive/data.pkl", 26)), {"zip archive", "safetensors"});
  expect_words(file_refusal("\x80\x02}q\x01X\x06module"), {"pickle"});
  expect_words(file_refusal("GGUF\x03\0\0\0 and more bytes"), {"GGUF"});
  expect_words(file_refusal("{\"error\":\"Repository not found\"}"), {"JSON text"});
  expect_words(file_refusal(""), {"0 bytes", "unfinished download"});
  expect_words(file_refusal("abc"), {"3 bytes", "unfinished download"});
  expect_words(file_refusal(u64_text(500) + "{\"a\":"), {"its header alone needs 508", "unfinished download"});
}

TEST(Safetensors, AHeaderLengthThatLooksLikeAnotherFileIsStillALength) {
  // 0x0280 begins like a pickle and 0x227b like JSON text.
  for (const std::size_t length : {std::size_t{0x0280}, std::size_t{0x227b}}) {
    std::string json = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    json.resize(length, ' ');
    EXPECT_EQ(file_refusal(u64_text(length) + json + "x"), "accepted") << length;
  }
}

TEST(Safetensors, TruncationAtEveryLengthIsAnErrorAndNothingElse) {
  const std::string whole = testing::file_text({{"first", DType::f32, {3, 2}, {}}, {"second", DType::u8, {5}, {}}});
  for (std::size_t length = 0; length < whole.size(); ++length) EXPECT_NE(file_refusal(whole.substr(0, length)), "accepted") << length;
  EXPECT_EQ(file_refusal(whole), "accepted");
}

TEST(Safetensors, ClosesTheFileAfterReading) {
  const TempDir dir;
  testing::write_file(dir / "x.safetensors", testing::file_text({{"a", DType::u8, {5}, {}}}));
  const auto open_descriptors = [] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count += !entry.path().empty();
    return count;
  };
  const int before = open_descriptors();
  read_safetensors(dir / "x.safetensors", "x.safetensors");
  EXPECT_THROW(read_safetensors(dir.str(), "a directory"), Error);
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace motet
