// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/json_reader.h"
#include "base/text.h"
#include "motet/error.h"

namespace motet {
namespace {

std::string refusal(std::string_view text) {
  try {
    parse_json(text, "config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    return error.what();
  }
  return "accepted";
}
bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(Json, ParsesEveryKindOfValue) {
  const Json value = parse_json(
      R"( {"a":[1,-2,3.5,1e3,18446744073709551615],"b":{"c":true,"d":false,"e":null},"f":"x\n\u00e9\ud83d\ude00/"} )", "t");
  EXPECT_EQ(value.dump(),
            Json::parse(R"({"a":[1,-2,3.5,1000.0,18446744073709551615],"b":{"c":true,"d":false,"e":null},"f":"x\né😀/"})").dump());
  EXPECT_TRUE(value["a"][0].is_number_unsigned());
  EXPECT_TRUE(value["a"][1].is_number_integer());
  EXPECT_TRUE(parse_json("[]", "t").is_array());
  EXPECT_TRUE(parse_json("{}", "t").is_object());
  EXPECT_EQ(parse_json("-0", "t").dump(), "-0.0");
}

TEST(Json, TakesPythonsNaNAndInfinityAsDoubles) {
  const Json value = parse_json(R"({"a":NaN,"b":Infinity,"c":-Infinity,"d":"NaN"})", "t");
  EXPECT_TRUE(std::isnan(value["a"].get<double>()));
  EXPECT_EQ(value["b"].get<double>(), INFINITY);
  EXPECT_EQ(value["c"].get<double>(), -INFINITY);
  EXPECT_TRUE(value["d"].is_string());
  EXPECT_TRUE(has(refusal("{\"a\":Inf}"), "not a number"));
  EXPECT_TRUE(has(refusal("{\"a\":-NaN}"), "not a number"));
}

TEST(Json, ReadsTheFloatSpellingOfTransformers) {
  const Json value = parse_json(
      R"([{"__float__":"Infinity"},{"__float__":"-Infinity"},{"__float__":"NaN"},{"__float__":"1.5"},2,"3",{"__float__":"x"}])",
      "t");
  EXPECT_TRUE(value[0].is_object());
  EXPECT_EQ(number_of(value[0]), INFINITY);
  EXPECT_EQ(number_of(value[1]), -INFINITY);
  EXPECT_TRUE(std::isnan(*number_of(value[2])));
  EXPECT_EQ(number_of(value[3]), 1.5);
  EXPECT_EQ(number_of(value[4]), 2.0);
  EXPECT_EQ(number_of(value[5]), std::nullopt);
  EXPECT_EQ(number_of(value[6]), std::nullopt);
}

TEST(L18, JsonRefusalsNameTheTextTheRuleAndTheByte) {
  EXPECT_EQ(refusal(R"({"a":1,"b":2,"a":3})"),
            "config.json: the key 'a' occurs twice in one object; each key may occur once (byte 17)");
  EXPECT_TRUE(has(refusal(R"({"x":{"\u0061":1,"a":3}})"), "'a' occurs twice"));
  EXPECT_TRUE(has(refusal(std::string(65, '[')), "nested deeper than 64"));
  EXPECT_TRUE(has(refusal(std::string(200000, '[')), "nested deeper than 64"));
  EXPECT_TRUE(has(refusal(std::string(64, '[') + std::string(63, ']')), "config.json: expected"));
  EXPECT_EQ(refusal(std::string(64, '[') + std::string(64, ']')), "accepted");
}

TEST(L18, JsonGrammarIsHeld) {
  for (const std::string_view text : {"",
                                      " ",
                                      "{",
                                      "[",
                                      "\"",
                                      "{\"a\"",
                                      "{\"a\":",
                                      "{\"a\":1",
                                      "[1",
                                      "[1,",
                                      "[1,]",
                                      "{\"a\":1,}",
                                      "{,}",
                                      "[,1]",
                                      "{a:1}",
                                      "[1 2]",
                                      "01",
                                      "1.",
                                      ".5",
                                      "+1",
                                      "1e",
                                      "--1",
                                      "tru",
                                      "nul",
                                      "1 2",
                                      "[1]]",
                                      "\"\\x\"",
                                      "\"\\u12\"",
                                      "\"\\u12g4\"",
                                      "\"\\ud800\"",
                                      "\"\\ud800\\u0041\"",
                                      "\"\\udc00\"",
                                      "\"a\nb\"",
                                      "\"\xff\"",
                                      "\"\xc0\x80\"",
                                      "\"\xed\xa0\x80\"",
                                      "\"\xf4\x90\x80\x80\"",
                                      "\"abc\\",
                                      "\xef\xbb\xbf{}",
                                      "1e999",
                                      "<!DOCTYPE html>",
                                      "{\"a\":1}\n,",
                                      "NaNa"})
    EXPECT_NE(refusal(text), "accepted") << text;
  EXPECT_NE(refusal(std::string_view("[1]\0", 4)), "accepted");
  EXPECT_NE(refusal(std::string_view("\"a\0b\"", 5)), "accepted");
}

TEST(JsonReader, ReadsAHeaderInOnePassAndSkipsWhatItIsNotAskedFor) {
  JsonReader reader(R"({"__metadata__":{"x":[1,{"y":"z"}]},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", "header");
  reader.open_object();
  EXPECT_EQ(reader.next_key(), "__metadata__");
  reader.skip();
  EXPECT_EQ(reader.next_key(), "w");
  reader.open_object();
  EXPECT_EQ(reader.next_key(), "dtype");
  EXPECT_EQ(reader.read_string(), "F32");
  EXPECT_EQ(reader.next_key(), "shape");
  reader.open_array();
  std::int64_t product = 1;
  while (reader.next_item()) product *= reader.read_int64();
  EXPECT_EQ(product, 6);
  EXPECT_EQ(reader.next_key(), "data_offsets");
  reader.skip();
  EXPECT_EQ(reader.next_key(), std::nullopt);
  EXPECT_EQ(reader.next_key(), std::nullopt);
  EXPECT_NO_THROW(reader.finish());
}

TEST(JsonReader, IntegersMustBeIntegersWithin64Bits) {
  for (const std::string_view text : {"1.0", "1e2", "9223372036854775808", "\"1\"", "NaN", "null", "-0"}) {
    JsonReader reader(text, "header");
    EXPECT_THROW(reader.read_int64(), Error) << text;
  }
  EXPECT_EQ(JsonReader("-9223372036854775808", "header").read_int64(), INT64_MIN);
}

TEST(Text, QuotesUntrustedNamesSafely) {
  EXPECT_EQ(quoted("a\nb\xff"), "'a\\x0ab\\xff'");
  EXPECT_EQ(quoted("é"), "'é'");
  EXPECT_EQ(quoted(std::string(500, 'x'), 10), "'xxxxxxxxxx...'");
  EXPECT_EQ(bytes_text(17), "17 bytes");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(std::int64_t{24} << 30), "24 GiB");
  EXPECT_EQ(bytes_text((std::int64_t{1} << 30) - 1), "1 GiB");
}

}  // namespace
}  // namespace motet
