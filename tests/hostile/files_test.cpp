// SPDX-License-Identifier: Apache-2.0
// What lies where a checkpoint should: pipes, devices, loops, half a cache, and files that change while a layer runs.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "hostile.h"

namespace motet::hostile {
namespace {

namespace fs = std::filesystem;

/// Opens and expects an error of `code` whose sentence holds every word.
void expect_error(const std::string& where, ErrorCode code, const std::vector<std::string>& words) {
  SCOPED_TRACE(where);
  const Outcome outcome = outcome_of(where);
  EXPECT_EQ(name_of(outcome.code), name_of(code)) << outcome.text;
  for (const std::string& word : words) EXPECT_NE(outcome.text.find(word), std::string::npos) << "'" << word << "' in: " << outcome.text;
}

TEST(L18, ThingsThatAreNoFilesAreNamedAndNeverWaitedFor) {
  ::alarm(60);       // a FIFO that is opened for reading waits for ever: then this ends the test
  for (const std::string name : {"config.json", "model.safetensors"}) {
    const Victim victim("nemotron_h_latent");
    const std::string path = victim.dir / name;
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_error(victim.dir.str(), ErrorCode::io_error, {name, "not a regular file"});
    fs::remove(path);
    fs::create_symlink("/dev/zero", path);
    expect_error(victim.dir.str(), ErrorCode::io_error, {name, "not a regular file"});
    fs::remove(path);
    fs::create_directory(path);
    expect_error(victim.dir.str(), ErrorCode::io_error, {name, "not a regular file"});
    fs::remove(path);
  }
  ::alarm(0);
}

TEST(L18, LoopsAndDanglingLinksAreNamed) {
  const Victim victim("nemotron_h_latent");
  fs::remove(victim.weights_path());
  fs::create_symlink("model.safetensors", victim.weights_path());
  expect_error(victim.dir.str(), ErrorCode::io_error, {"model.safetensors", "symbolic links"});
  fs::remove(victim.weights_path());
  fs::create_symlink("nowhere", victim.weights_path());
  expect_error(victim.dir.str(), ErrorCode::io_error, {"model.safetensors", "No such file"});
}

TEST(L18, AHubCacheBrokenInEachPlaceIsNamed) {
  const TempDir cache;
  ASSERT_EQ(::setenv("HF_HUB_CACHE", cache.str().c_str(), 1), 0);
  const std::string model = cache / "models--owner--name", snapshot = model + "/snapshots/abc";
  expect_error("owner/name", ErrorCode::io_error, {"'owner/name'", "HF_HUB_CACHE"});
  fs::create_directories(model + "/refs");
  expect_error("owner/name", ErrorCode::io_error, {"refs/main", "missing"});
  for (const std::string reference : {"", "../../..", "/etc", "a/b"}) {
    testing::write_file(model + "/refs/main", reference);
    expect_error("owner/name", ErrorCode::bad_input, {"refs/main", "must hold a revision"});
  }
  testing::write_file(model + "/refs/main", std::string(5000, 'a'));
  expect_error("owner/name", ErrorCode::bad_input, {"refs/main", "5000 bytes"});
  testing::write_file(model + "/refs/main", "abc\n");
  expect_error("owner/name", ErrorCode::io_error, {"snapshot abc", "not in the cache"});
  fs::create_directories(snapshot);
  expect_error("owner/name", ErrorCode::bad_input, {"config.json"});
  fs::copy_file(golden("nemotron_h_latent/config.json"), snapshot + "/config.json");
  expect_error("owner/name", ErrorCode::bad_input, {"model.safetensors"});
  fs::create_symlink("../../blobs/gone", snapshot + "/model.safetensors");
  expect_error("owner/name", ErrorCode::io_error, {"model.safetensors", "No such file"});
  fs::remove(snapshot + "/model.safetensors");
  fs::create_symlink(golden("nemotron_h_latent/model.safetensors"), snapshot + "/model.safetensors");
  EXPECT_EQ(outcome_of("owner/name").code, ErrorCode::ok);
  ::unsetenv("HF_HUB_CACHE");
}

TEST(L18, ShardNamesThatLeaveTheDirectoryAreRefused) {
  const Victim victim("nemotron_h_latent");
  for (const std::string name : {"../model.safetensors", "/etc/passwd", "a/b", "..", ".", "", "a\\\\b", "\\u0000"}) {
    testing::write_file(victim.dir / "model.safetensors.index.json", "{\"weight_map\": {\"t\": \"" + name + "\"}}");
    expect_error(victim.dir.str(), ErrorCode::bad_input, {"model.safetensors.index.json", "no plain file name"});
  }
}

/// A way in which a mapped file changes, and what the status must say of it.
struct Change {
  const char* word;
  void (*apply)(const Victim&);
};

TEST(L18, AFileThatChangesUnderARunningLayerIsNamed) {
  const Change changes[] = {
      {"shrank", [](const Victim& victim) { fs::resize_file(victim.weights_path(), victim.weights.size() - 1); }},
      {"shrank", [](const Victim& victim) { fs::resize_file(victim.weights_path(), 0); }},
      {"was written to", [](const Victim& victim) { fs::resize_file(victim.weights_path(), victim.weights.size() + 1); }},
      {"was written to", [](const Victim& victim) { fs::last_write_time(victim.weights_path(), fs::file_time_type::clock::now() + std::chrono::seconds(5)); }},
      {"is gone", [](const Victim& victim) { fs::remove(victim.weights_path()); }},
      {"was replaced", [](const Victim& victim) {
         testing::write_file(victim.dir / "new", victim.weights);
         fs::rename(victim.dir / "new", victim.weights_path());
       }},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.word);
    const Victim victim("nemotron_h_latent");
    const auto checkpoint = Checkpoint::open(victim.dir.str());
    Runnable run = runnable(*checkpoint, reference(), 1);
    const std::vector<float> token = synthetic_hidden_states(1, run.plan.spec.hidden, 1);
    ASSERT_TRUE(forward(run, token).status.ok());
    change.apply(victim);
    const RunStatus status = forward(run, token).status;
    EXPECT_EQ(name_of(status.code), name_of(ErrorCode::file_changed));
    EXPECT_NE(status.text().find(change.word), std::string_view::npos) << status.text();
    EXPECT_NE(status.text().find("open the checkpoint again"), std::string_view::npos) << status.text();
    try {
      checkpoint->load(run.plan.spec.layer);
      ADD_FAILURE() << "a changed file was mapped";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::file_changed || error.code() == ErrorCode::io_error) << error.what();
    }
  }
}

TEST(L18, AFileThatOnlyLosesItsPermissionsOrGainsALinkRunsOn) {
  const Victim victim("nemotron_h_latent");
  const auto checkpoint = Checkpoint::open(victim.dir.str());
  Runnable run = runnable(*checkpoint, reference(), 1);
  fs::create_hard_link(victim.weights_path(), victim.dir / "link");
  fs::permissions(victim.weights_path(), fs::perms::none);
  EXPECT_TRUE(forward(run, synthetic_hidden_states(1, run.plan.spec.hidden, 1)).status.ok());
}

}  // namespace
}  // namespace motet::hostile
