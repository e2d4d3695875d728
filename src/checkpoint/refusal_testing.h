// SPDX-License-Identifier: Apache-2.0
// For tests: the sentence with which a checkpoint is refused. Not part of the library.
#pragma once

#include <gtest/gtest.h>

#include "checkpoint/testing.h"
#include "motet/checkpoint.h"

namespace motet::testing {

inline void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* const word : words) EXPECT_NE(text.find(word), std::string::npos) << "no '" << word << "' in: " << text;
}

/// "accepted" when it opens.
inline std::string refusal(const std::string& where, ErrorCode code = ErrorCode::bad_input) {
  try {
    Checkpoint::open(where);
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.code()), name_of(code)) << error.what();
    return error.what();
  }
  return "accepted";
}

inline std::string refusal(const TestCheckpoint& checkpoint, ErrorCode code = ErrorCode::bad_input) {
  const TempDir dir;
  checkpoint.write(dir);
  return refusal(dir.str(), code);
}

}  // namespace motet::testing
