// The tool: safetensors files that are right and wrong, and `normgrad` as a process.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "safetensors.hpp"
#include "tool_fixture.hpp"

namespace normgrad::tool {
namespace {

StoredTensor stored(std::vector<int64_t> shape, const std::vector<float>& values) {
  StoredTensor result{{DType::kF32, std::move(shape)}, {}};
  result.data.resize(values.size() * sizeof(float));
  std::memcpy(result.data.data(), values.data(), result.data.size());
  return result;
}

std::vector<float> floats(const StoredTensor& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

StoredTensors layer_norm_inputs() {
  return {{"x_hat", stored({1, 2, 4}, {1, -1, 1, -1, 1, 1, -1, -1})},
          {"std", stored({1, 2}, {2, 0.5f})},
          {"gamma", stored({4}, {1, 1, 2, 2})},
          {"dy", stored({1, 2, 4}, {1, 2, 3, 4, 4, 3, 2, 1})}};
}

StoredTensors batch_norm_inputs() {
  return {{"x", stored({2, 2, 2}, {1, 3, 0, 4, 1, 3, 4, 0})},
          {"mean", stored({2}, {2, 2})},
          {"variance", stored({2}, {1, 4})},
          {"gamma", stored({2}, {2, 1})},
          {"dy", stored({2, 2, 2}, {1, 2, 2, 0, 3, 6, 4, 2})}};
}

TEST_F(Tool, SafetensorsRoundTrip) {
  StoredTensors tensors = layer_norm_inputs();
  tensors["half"] = {{DType::kF16, {3}}, std::vector<std::byte>(6, std::byte{0x3C})};
  tensors["brain"] = {{DType::kBF16, {0, 7}}, {}};
  write_safetensors(path("a"), tensors);
  const StoredTensors back = read_safetensors(path("a"));
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(back.contains(name)) << name;
    EXPECT_EQ(back.at(name).tensor.dtype, tensor.tensor.dtype) << name;
    EXPECT_EQ(back.at(name).tensor.shape, tensor.tensor.shape) << name;
    EXPECT_EQ(back.at(name).data, tensor.data) << name;
  }
}

TEST_F(Tool, WrongSafetensorsAreRefusedWithAReason) {
  const struct {
    const char *header, *reason;
    int64_t data_size = 8;
  } cases[] = {
      {"[]", "expected a JSON object"},
      {"{\"x\":", "expected a JSON object"},
      {R"({"x":3})", "tensor 'x': expected a JSON object"},
      {R"({"x":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", "got \"I64\""},
      {R"({"x":{"shape":[2],"data_offsets":[0,8]}})", "expected dtype F32, F16 or BF16; got null"},
      {R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "expected shape"},
      {R"({"x":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "expected shape"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "expected data_offsets"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "within the 8 bytes"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", "within the 8 bytes"},
      {R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "expected 12 bytes"},
      {R"({"x":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]}})",
       "more than 2^64"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "begin at 0"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "expected 4 bytes of data"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
           "y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "tensor 'y': expected data_offsets to begin at 8"},
  };
  for (const auto& each : cases) {
    const uint64_t length = std::strlen(each.header);
    std::ofstream(path("a"), std::ios::binary)
        .write(reinterpret_cast<const char*>(&length), 8)
        .write(each.header, static_cast<std::streamsize>(length))
        .write("\0\0\0\0\0\0\0\0", each.data_size);
    try {
      read_safetensors(path("a"));
      ADD_FAILURE() << "accepted " << each.header;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(each.reason), std::string::npos) << error.what();
      EXPECT_TRUE(std::string(error.what()).starts_with(path("a") + ": ")) << error.what();
    }
  }
}

TEST_F(Tool, TruncatedFilesAreRefused) {
  write_safetensors(path("a"), layer_norm_inputs());
  const auto whole = std::filesystem::file_size(path("a"));
  for (const auto size : {whole - 1, whole / 2, uintmax_t{9}, uintmax_t{7}, uintmax_t{0}}) {
    std::filesystem::resize_file(path("a"), size);
    EXPECT_THROW(read_safetensors(path("a")), std::runtime_error) << size;
  }
  EXPECT_THROW(read_safetensors(path("absent")), std::runtime_error);
  EXPECT_THROW(read_safetensors(path("")), std::runtime_error);
  EXPECT_THROW(write_safetensors(path("no/folder"), {}), std::runtime_error);
}

TEST_F(Tool, RunsLayerNorm) {
  write_safetensors(path("in"), layer_norm_inputs());
  ASSERT_EQ(normgrad("run layer_norm_backward " + path("in") + " -o " + path("out")), 0) << said;
  const StoredTensors out = read_safetensors(path("out"));
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(floats(out.at("dx")), (std::vector<float>{-1.25f, -1.5f, 1.25f, 1.5f, 1, -1, 2, -2}));
  EXPECT_EQ(floats(out.at("dgamma")), (std::vector<float>{5, 1, 1, -5}));
  EXPECT_EQ(floats(out.at("dbeta")), (std::vector<float>{5, 5, 5, 5}));
}

// Rows (1, 3) and (0, 4) have mean 2 and variances 1 and 4.
TEST_F(Tool, StatisticsHaveThreeForms) {
  StoredTensors tensors = {{"x", stored({2, 2}, {1, 3, 0, 4})},
                           {"dy", stored({2, 2}, {1, 2, 5, 3})},
                           {"mean", stored({2}, {2, 2})}};
  const auto run = [&](const std::string& options) {
    write_safetensors(path("in"), tensors);
    EXPECT_EQ(normgrad("run layer_norm " + path("in") + " -o " + path("out") + options), 0) << said;
    return floats(read_safetensors(path("out")).at("dgamma"));
  };
  tensors["rstd"] = stored({2, 1}, {0.5f, 0.25f});  // x_hat = -0.5, 0.5 in both rows
  EXPECT_EQ(run(""), (std::vector<float>{-3, 2.5f}));
  tensors.erase("rstd");
  tensors["variance"] = stored({2}, {1, 4});
  EXPECT_EQ(run(""), (std::vector<float>{-6, 5}));
  tensors["variance"] = stored({2}, {1, 13});
  EXPECT_EQ(run(" --eps 3 --outputs dgamma"), (std::vector<float>{-3, 2.5f}));
  EXPECT_EQ(read_safetensors(path("out")).size(), 1u);
}

TEST_F(Tool, RunsRmsNorm) {
  // mean(x^2) = 4, r = 1/2, x_hat = (1, -1, 1, -1)
  write_safetensors(path("in"), {{"x", stored({1, 4}, {2, -2, 2, -2})},
                                 {"gamma", stored({4}, {1, 1, 2, 2})},
                                 {"dy", stored({1, 4}, {1, 2, 3, 4})}});
  ASSERT_EQ(normgrad("run rms_norm_backward " + path("in") + " -o " + path("out")), 0) << said;
  const StoredTensors out = read_safetensors(path("out"));
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(floats(out.at("dx")), (std::vector<float>{0.875f, 0.625f, 3.375f, 3.625f}));
  EXPECT_EQ(floats(out.at("dgamma")), (std::vector<float>{1, -2, 3, -4}));
}

TEST_F(Tool, RunsBatchNorm) {
  write_safetensors(path("in"), batch_norm_inputs());
  const std::string command = "run batch_norm_backward " + path("in") + " -o " + path("out");
  ASSERT_EQ(normgrad(command), 0) << said;
  StoredTensors out = read_safetensors(path("out"));
  EXPECT_EQ(floats(out.at("dx")), (std::vector<float>{-2, -4, 0, -1, 2, 4, 1, 0}));
  EXPECT_EQ(floats(out.at("dgamma")), (std::vector<float>{4, 0}));
  EXPECT_EQ(floats(out.at("dbeta")), (std::vector<float>{12, 8}));

  ASSERT_EQ(normgrad(command + " --frozen --params-dtype bf16"), 0) << said;
  out = read_safetensors(path("out"));
  EXPECT_EQ(floats(out.at("dx")), (std::vector<float>{2, 4, 1, 0, 6, 12, 2, 1}));
  EXPECT_EQ(out.at("dgamma").tensor.dtype, DType::kBF16);
  EXPECT_EQ(out.at("dgamma").data.size(), 4u);
}

TEST_F(Tool, WrongCallsSayWhy) {
  write_safetensors(path("ln"), layer_norm_inputs());
  write_safetensors(path("bn"), batch_norm_inputs());
  StoredTensors both = batch_norm_inputs();
  both["rstd"] = both["variance"];
  write_safetensors(path("both"), both);
  const std::string out = " -o " + path("out");
  const struct {
    std::string arguments;
    int exit_code;
    const char* reason;
  } cases[] = {
      {"", 2, "Subcommands:"},
      {"bogus", 2, "bogus"},
      {"run", 2, "op is required"},
      {"run nonsense " + path("ln") + out, 2, "got 'nonsense'"},
      {"run layer_norm " + path("absent") + out, 1, "cannot open it"},
      {"run rms_norm " + path("ln") + out, 1, "expected a tensor 'x'"},
      {"run rms_norm " + path("bn") + out, 1, "got 'mean' too"},
      {"run batch_norm " + path("both") + out, 1, "expected exactly one of"},
      {"run batch_norm " + path("bn") + out + " --eps -1", 1, "eps"},
      {"run layer_norm " + path("ln") + out + " --frozen", 1, "--frozen"},
      {"run layer_norm " + path("ln") + out + " --outputs dy", 2, "dy"},
      {"run rms_norm " + path("bn") + out + " --outputs dbeta", 1, "--outputs"},
      {"run layer_norm " + path("ln") + out + " --device cuda", 1, "cuda"},
      {"info --shape 3xx4", 1, "--shape"},
      {"check --impl cpu:nonsense", 1, "--impl: expected one of cpu:"},
      {"check --device cuda", 1, "--device"},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(normgrad(each.arguments), each.exit_code) << each.arguments << "\n" << said;
    EXPECT_NE(said.find(each.reason), std::string::npos) << each.arguments << "\n" << said;
    EXPECT_FALSE(std::filesystem::exists(path("out"))) << each.arguments;
  }
}

TEST_F(Tool, InfoNamesKernels) {
  ASSERT_EQ(normgrad("info"), 0) << said;
  for (const char* word : {"cpu:", "layer_norm", "rms_norm", "batch_norm", "bf16"}) {
    EXPECT_NE(said.find(word), std::string::npos) << word;
  }
  ASSERT_EQ(normgrad("info --op batch_norm --shape 12 --dtype f16"), 1) << said;
  EXPECT_NE(said.find("refused: x: expected 2 to 8 axes"), std::string::npos) << said;
}

TEST(Arguments, Shapes) {
  EXPECT_EQ(parse_shape("16384x4096"), (std::vector<int64_t>{16384, 4096}));
  EXPECT_EQ(parse_shape("0"), (std::vector<int64_t>{0}));
  for (const char* wrong :
       {"", "x", "3x", "x3", "3xx4", "-3", "3,4", "3 x4", "99999999999999999999"}) {
    EXPECT_THROW(parse_shape(wrong), std::runtime_error) << wrong;
  }
}

}  // namespace
}  // namespace normgrad::tool
