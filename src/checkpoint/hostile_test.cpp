// SPDX-License-Identifier: Apache-2.0
// Broken bytes anywhere: an Error or a checkpoint, never a crash, a hang or a leak.
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/testing.h"
#include "formats/layer_weights.h"
#include "motet/checkpoint.h"

namespace motet {
namespace {

using testing::TempDir;

/// Opens and loads; true when nothing was refused.
bool survives(const TempDir& dir) {
  try {
    const auto checkpoint = Checkpoint::open(dir.str());
    for (const LayerSummary& layer : checkpoint->layers()) checkpoint->load(layer.spec.layer);
    return true;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()), "");
    return false;
  }
}

void flip(std::string& text, std::mt19937& random) {
  const int flips = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < flips; ++i) text[random() % text.size()] ^= static_cast<char>(1 << random() % 8);
}

/// Writes over the beginning of a file in place, which costs less than a new file.
void overwrite(const std::string& path, const std::string& text) {
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).write(text.data(), static_cast<std::streamsize>(text.size()));
}

TEST(L18, RandomBitFlipsInTheHeaderNeverCrash) {
  const TempDir dir;
  const testing::TestCheckpoint checkpoint = testing::gpt_oss_checkpoint(1, 32, 32, 2);
  checkpoint.write(dir);
  ASSERT_TRUE(survives(dir));
  const std::string whole = testing::read_file(dir / "model.safetensors");
  const std::size_t header = 8 + testing::header_of(checkpoint.tensors).size();
  int refused = 0;
  for (unsigned seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::string head = whole.substr(0, header);
    flip(head, random);
    overwrite(dir / "model.safetensors", head);
    refused += !survives(dir);
  }
  EXPECT_GT(refused, 4000);       // names that no layer uses, and __metadata__, may change without harm
}

TEST(L18, RandomBitFlipsInConfigAndIndexNeverCrash) {
  for (const char* const name : {"config.json", "model.safetensors.index.json"}) {
    const TempDir dir;
    testing::gpt_oss_checkpoint(1, 32, 32, 2).write_shards(dir, 2);
    ASSERT_TRUE(survives(dir));
    const std::string whole = testing::read_file(dir / name);
    int refused = 0;
    for (unsigned seed = 0; seed < 1000; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      std::mt19937 random(seed);
      std::string text = whole;
      flip(text, random);
      overwrite(dir / name, text);
      refused += !survives(dir);
    }
    EXPECT_GT(refused, 500) << name;
  }
}

TEST(L18, TruncationOfEachFileIsAnError) {
  for (const char* const name : {"config.json", "model.safetensors.index.json", "model-1-of-2.safetensors"}) {
    const TempDir dir;
    testing::gpt_oss_checkpoint(1, 32, 32, 2).write_shards(dir, 2);
    const std::string whole = testing::read_file(dir / name);
    for (std::size_t length = 0; length < whole.size(); length += 1 + length / 100) {
      testing::write_file(dir / name, whole.substr(0, length));
      EXPECT_FALSE(survives(dir)) << name << " " << length;
    }
  }
}

}  // namespace
}  // namespace motet
