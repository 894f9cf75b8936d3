#include "safetensors.hpp"

#include <fmt/ranges.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "arguments.hpp"

namespace normgrad::tool {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the data is copied as it is");

// A header longer than this is not one: real ones take some hundred bytes per tensor.
constexpr uint64_t kMaxHeader = 100'000'000;

constexpr std::pair<const char*, DType> kTypeNames[] = {
    {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16}};

template <class... Args>
[[noreturn]] void fail(const std::string& path, fmt::format_string<Args...> format,
                       Args&&... args) {
  throw std::runtime_error(path + ": " + fmt::format(format, std::forward<Args>(args)...));
}

DType parse_dtype(const std::string& path, const std::string& name, const json& entry) {
  const json dtype = entry.value("dtype", json());
  for (const auto& [type_name, type] : kTypeNames) {
    if (dtype == type_name) return type;
  }
  fail(path, "tensor '{}': expected dtype F32, F16 or BF16; got {}", name, dtype.dump());
}

// The number of bytes of the tensor, or nothing if it is beyond 64 bits.
std::optional<uint64_t> byte_size(const Tensor& tensor) {
  uint64_t bytes = size_of(tensor.dtype);
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) return {};
  }
  return bytes;
}

std::vector<int64_t> parse_shape(const std::string& path, const std::string& name,
                                 const json& entry) {
  const json shape = entry.value("shape", json());
  bool good = shape.is_array();
  for (const json& extent : shape) {
    good = good && extent.is_number_unsigned() &&
           extent.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
  }
  if (!good) {
    fail(path, "tensor '{}': expected shape to be a list of extents; got {}", name, shape.dump());
  }
  return shape.get<std::vector<int64_t>>();
}

// The half-open range of bytes that the tensor takes in the data.
std::pair<uint64_t, uint64_t> parse_range(const std::string& path, const std::string& name,
                                          const json& entry, const Tensor& tensor,
                                          uint64_t data_size) {
  const json offsets = entry.value("data_offsets", json());
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    fail(path, "tensor '{}': expected data_offsets [begin, end]; got {}", name, offsets.dump());
  }
  const uint64_t begin = offsets[0], end = offsets[1];
  if (begin > end || end > data_size) {
    fail(path, "tensor '{}': expected data_offsets within the {} bytes of data; got [{}, {}]", name,
         data_size, begin, end);
  }
  const std::optional<uint64_t> expected = byte_size(tensor);
  if (expected != end - begin) {
    fail(path, "tensor '{}': expected {} bytes for {} of shape {}; got {} (data_offsets [{}, {}])",
         name, expected ? std::to_string(*expected) : "more than 2^64", name_of(tensor.dtype),
         format_shape(tensor.shape), end - begin, begin, end);
  }
  return {begin, end};
}

json read_header(const std::string& path, std::ifstream& file, uint64_t file_size) {
  uint64_t header_size = 0;
  if (!file.read(reinterpret_cast<char*>(&header_size), sizeof header_size)) {
    fail(path, "expected a safetensors file, at least 8 bytes; got {}", file_size);
  }
  if (header_size > kMaxHeader || header_size > file_size - sizeof header_size) {
    fail(path, "expected a header within the {} bytes of the file; got a header length of {}",
         file_size, header_size);
  }
  std::string text(header_size, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    fail(path, "cannot read the header");
  }
  json header = json::parse(text, nullptr, false);
  if (!header.is_object()) fail(path, "expected a JSON object as header; it does not parse as one");
  return header;
}

}  // namespace

StoredTensors read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot open it for reading");
  std::error_code error;
  const uint64_t file_size = std::filesystem::file_size(path, error);
  if (error) fail(path, "cannot read it: {}", error.message());
  const json header = read_header(path, file, file_size);
  const uint64_t data_start = static_cast<uint64_t>(file.tellg());

  StoredTensors tensors;
  std::map<std::pair<uint64_t, uint64_t>, std::string> ranges;  // by their place in the data
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (!entry.is_object()) fail(path, "tensor '{}': expected a JSON object", name);
    StoredTensor& stored = tensors[name];
    stored.tensor.dtype = parse_dtype(path, name, entry);
    stored.tensor.shape = parse_shape(path, name, entry);
    const auto range = parse_range(path, name, entry, stored.tensor, file_size - data_start);
    ranges.emplace(range, name);
    stored.data.resize(range.second - range.first);
    file.seekg(static_cast<std::streamoff>(data_start + range.first));
    if (!file.read(reinterpret_cast<char*>(stored.data.data()),
                   static_cast<std::streamsize>(stored.data.size()))) {
      fail(path, "tensor '{}': cannot read its {} bytes", name, stored.data.size());
    }
  }

  // The format allows neither gaps nor overlaps.
  uint64_t next = 0;
  for (const auto& [range, name] : ranges) {
    if (range.first != next) {
      fail(path,
           "tensor '{}': expected data_offsets to begin at {}, where the tensor before it "
           "ends; got {}",
           name, next, range.first);
    }
    next = range.second;
  }
  if (next != file_size - data_start) {
    fail(path, "expected {} bytes of data, as the tensors have; got {}", next,
         file_size - data_start);
  }
  return tensors;
}

void write_safetensors(const std::string& path, const StoredTensors& tensors) {
  json header = json::object();
  uint64_t offset = 0;
  for (const auto& [name, stored] : tensors) {
    const char* type_name = nullptr;
    for (const auto& [text, type] : kTypeNames) {
      if (type == stored.tensor.dtype) type_name = text;
    }
    header[name] = {{"dtype", type_name},
                    {"shape", stored.tensor.shape},
                    {"data_offsets", {offset, offset + stored.data.size()}}};
    offset += stored.data.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts at a multiple of 8 bytes

  std::ofstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot open it for writing");
  const uint64_t header_size = text.size();
  file.write(reinterpret_cast<const char*>(&header_size), sizeof header_size);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& [name, stored] : tensors) {
    file.write(reinterpret_cast<const char*>(stored.data.data()),
               static_cast<std::streamsize>(stored.data.size()));
  }
  file.close();
  if (!file) fail(path, "cannot write {} bytes to it", 8 + text.size() + offset);
}

}  // namespace normgrad::tool
