// SPDX-License-Identifier: Apache-2.0
// write_tensor_file wrote two tensors of one name: the file looked whole, but no reader, Motet's own included, would open it.
// The name is refused now, before anything is written.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "motet/motet.hpp"

namespace motet {
namespace {

TEST(DuplicateTensorNames, AreRefusedByNameAndLeaveNoFile) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / ("motet_duplicate_" + std::to_string(getpid()) + ".safetensors");
  const float value = 1;
  const NamedTensor output{"output", DType::f32, {1}, &value}, other{"top_k_weights", DType::f32, {1}, &value};
  try {
    write_tensor_file(path.string(), {output, other, output});
    ADD_FAILURE() << "two tensors of one name were written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("output"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  write_tensor_file(path.string(), {output, other});
  EXPECT_EQ(TensorFile::open(path.string())->tensors().size(), 2U);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace motet
