// SPDX-License-Identifier: Apache-2.0
#include "plan/fingerprint.h"

#include <gtest/gtest.h>

#include <map>
#include <type_traits>

#include "plan/fake_catalog.h"
#include "plan/fields.h"

namespace motet {
namespace {

TEST(Fingerprint, IsFnv1a128) {
  EXPECT_EQ(fnv1a_128(""), "6c62272e07bb014262b821756295c58d");
  EXPECT_EQ(fnv1a_128("a"), "d228cb696f1a8caf78912b704e4a8964");
  EXPECT_EQ(fnv1a_128("foobar"), "343e1662793c64bf6f0d3597ba446f18");
}

/// Walks the fields of a plan and changes one leaf in place: the fields are those of fields.h, so none can be forgotten here.
class ChangeLeaf {
 public:
  explicit ChangeLeaf(int which) : which_(which) {}
  bool done() const { return seen_ > which_; }
  std::string name;

  template <class T>
  void operator()(const char* field, const T& value) {
    const std::string outer = path_;
    path_ += std::string(".") + field;
    change(const_cast<T&>(value));
    path_ = outer;
  }

 private:
  template <class T>
  void change(T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string>) {
      if (seen_++ != which_) return;
      name = path_;
      if constexpr (std::is_same_v<T, std::string>)
        value += "x";
      else if constexpr (std::is_same_v<T, bool>)
        value = !value;
      else
        value = static_cast<T>(static_cast<std::int64_t>(value) == 0 ? 1 : 0);
    } else {
      visit_fields(*this, value);
    }
  }
  template <class T>
  void change(std::vector<T>& values) {
    for (T& value : values) change(value);
  }

  int which_, seen_ = 0;
  std::string path_;
};

/// Converts to any member, so that the members of an aggregate can be counted by how many of them initialise it.
struct AnyMember {
  template <class T>
  operator T() const;
};
template <class T, class... Members>
constexpr std::size_t members_of() {
  if constexpr (requires { T{Members{}..., AnyMember{}}; })
    return members_of<T, Members..., AnyMember>();
  else
    return sizeof...(Members);
}

struct CountFields {
  std::size_t count = 0;
  template <class T>
  void operator()(const char*, const T&) {
    ++count;
  }
};

template <class T>
void expect_all_members_visited(const char* name) {
  CountFields visitor;
  visit_fields(visitor, T{});
  EXPECT_EQ(visitor.count, members_of<T>()) << name;
}

TEST(Fingerprint, TheListsOfFieldsHaveEveryMember) {
  expect_all_members_visited<Activation>("Activation");
  expect_all_members_visited<RouterSpec>("RouterSpec");
  expect_all_members_visited<ProjectionSpec>("ProjectionSpec");
  expect_all_members_visited<SharedExpertSpec>("SharedExpertSpec");
  expect_all_members_visited<LayerSpec>("LayerSpec");
  expect_all_members_visited<Wishes>("Wishes");
  expect_all_members_visited<Deployment>("Deployment");
  expect_all_members_visited<Environment>("Environment");
  expect_all_members_visited<Width>("Width");
  expect_all_members_visited<TensorType>("TensorType");
  expect_all_members_visited<Stage>("Stage");
  expect_all_members_visited<TailStep>("TailStep");
  expect_all_members_visited<Recipe>("Recipe");
  expect_all_members_visited<Area>("Area");
  expect_all_members_visited<Workspace>("Workspace");
  expect_all_members_visited<Refusal>("Refusal");
  expect_all_members_visited<RankSlice>("RankSlice");
  expect_all_members_visited<MemoryPlan>("MemoryPlan");
  expect_all_members_visited<Estimates>("Estimates");
  expect_all_members_visited<Plan>("Plan");
}

/// Wishes about one host: they change no byte of an exchange and no bit of a result.
bool is_fact_of_one_host(const std::string& leaf) { return leaf == ".memory_limit" || leaf == ".wishes.threads"; }

template <class Struct>
int expect_every_leaf_counts(Struct Plan::*part) {
  const Plan plan = fake::plan(fake::nemotron(1024), fake::with_backend("wide", 7));
  int leaves = 0;
  for (;; ++leaves) {
    Plan other = plan;
    ChangeLeaf visitor(leaves);
    visit_fields(visitor, other.*part);
    if (!visitor.done()) return leaves;
    EXPECT_EQ(fingerprint_of(other) == plan.fingerprint, is_fact_of_one_host(visitor.name)) << visitor.name;
  }
}

TEST(Fingerprint, EveryFieldOfTheSpecCounts) { EXPECT_GT(expect_every_leaf_counts(&Plan::spec), 60); }
TEST(Fingerprint, EveryFieldOfTheDeploymentCounts) { EXPECT_GE(expect_every_leaf_counts(&Plan::deployment), 13); }
TEST(Fingerprint, EveryFieldOfTheRecipeCounts) { EXPECT_GE(expect_every_leaf_counts(&Plan::recipe), 8); }

TEST(Fingerprint, WidthsStagesTailAndSlicesCount) {
  const Plan plan = fake::plan(fake::nemotron(1024));
  for (int part = 0; part < 8; ++part) {
    Plan other = plan;
    if (part == 0) other.widths[0].stored += 1;
    if (part == 1) other.stages[0].out[0].dtype = DType::f64;
    if (part == 2) other.tail.pop_back();
    if (part == 3) other.ranks[0].down_bias = false;
    if (part == 4) other.backend += "x";
    if (part == 5) other.target += "x";
    if (part == 6) other.environment.version += "x";
    if (part == 7) other.environment.arithmetic_ranking = {"f32", "bf16_dot"};
    EXPECT_NE(fingerprint_of(other), plan.fingerprint) << part;
  }
}

TEST(Fingerprint, EstimatesAndFactsOfOneHostDoNotCount) {
  const Plan plan = fake::plan(fake::gpt_oss());
  Plan other = plan;
  other.estimates.weight_bytes_per_token = 1;
  other.estimates.note = "measured elsewhere";
  EXPECT_EQ(fingerprint_of(other), plan.fingerprint);
  EXPECT_EQ(other, plan) << "estimates are outside equality too";
  Environment host = fake::environment();
  host.threads = 64;
  host.memory_bytes *= 2;
  host.page_bytes = 16384;
  host.numa_nodes = 8;
  EXPECT_EQ(plan_with(fake::gpt_oss(), {}, host, fake::catalog()).value().fingerprint, plan.fingerprint);
  Deployment wishes;
  wishes.memory_limit = std::int64_t{8} << 30;
  wishes.wishes.threads = 7;
  EXPECT_EQ(plan_with(fake::gpt_oss(), wishes, host, fake::catalog()).value().fingerprint, plan.fingerprint);
}

TEST(Fingerprint, StringsCannotRunIntoEachOther) {
  const Plan plan = fake::plan(fake::gpt_oss());
  Plan a = plan, b = plan;
  a.recipe.sum_order = {"ab", "c"};
  b.recipe.sum_order = {"a", "bc"};
  EXPECT_NE(fingerprint_of(a), fingerprint_of(b));
}

}  // namespace
}  // namespace motet
