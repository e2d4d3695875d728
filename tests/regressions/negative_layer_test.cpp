// SPDX-License-Identifier: Apache-2.0
// `motet plan --layer -1` planned the first MoE layer: -1 was the program's own sign for "no layer given", so that a mistake in a
// script went unseen. Every number that is no MoE layer is refused now, and the MoE layers are listed.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "motet/motet.hpp"

namespace motet {
namespace {

int exit_code_of_plan(const std::string& options) {
  const std::string command = MOTET_BIN_DIR "/motet plan " MOTET_SOURCE_DIR "/sample/gpt-oss-tiny " + options + " >/dev/null 2>&1 </dev/null";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(NegativeLayer, IsRefusedByTheProgram) {
  const int usage = exit_code_of(ErrorCode::invalid_argument);
  EXPECT_EQ(exit_code_of_plan("--layer=-1"), usage);
  EXPECT_EQ(exit_code_of_plan("--layer -1"), usage);
  EXPECT_EQ(exit_code_of_plan("--layer 2"), usage);
  EXPECT_EQ(exit_code_of_plan("--layer 1"), 0);
  EXPECT_EQ(exit_code_of_plan(""), 0);
}

TEST(NegativeLayer, IsRefusedByTheLibrary) {
  const auto checkpoint = Checkpoint::open(MOTET_SOURCE_DIR "/sample/gpt-oss-tiny");
  try {
    checkpoint->layer(-1);
    ADD_FAILURE() << "there is no layer -1";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("0, 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace motet
