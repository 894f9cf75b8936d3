// oneDNN as a peer of `normgrad bench`; docs/peers.md has the protocol and the reasons.
#include <malloc.h>
#include <sched.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using nlohmann::json;
using Desc = dnnl::memory::desc;
using Flags = dnnl::normalization_flags;
using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

// What differs between the versions: 2 makes a primitive descriptor of an operation descriptor,
// 3 of the same values; 3.9 has RMSNorm. A gradient is told of its forward pass.
#if DNNL_VERSION_MAJOR >= 3
auto layer_norm(const dnnl::engine& engine, const Desc& data, const Desc& rows, float eps,
                Flags flags) {
  using dnnl::prop_kind;
  dnnl::layer_normalization_forward::primitive_desc forward(engine, prop_kind::forward_training,
                                                            data, data, rows, eps, flags);
  dnnl::layer_normalization_backward::primitive_desc backward(
      engine, prop_kind::backward, data, data, data, rows, eps, flags, forward);
  return std::pair(forward, backward);
}
auto batch_norm(const dnnl::engine& engine, const Desc& data, float eps, Flags flags) {
  using dnnl::prop_kind;
  dnnl::batch_normalization_forward::primitive_desc forward(engine, prop_kind::forward_training,
                                                            data, data, eps, flags);
  return dnnl::batch_normalization_backward::primitive_desc(engine, prop_kind::backward, data, data,
                                                            data, eps, flags, forward);
}
#else
auto layer_norm(const dnnl::engine& engine, const Desc& data, const Desc& rows, float eps,
                Flags flags) {
  using dnnl::prop_kind;
  dnnl::layer_normalization_forward::primitive_desc forward(
      {prop_kind::forward_training, data, rows, eps, flags}, engine);
  dnnl::layer_normalization_backward::primitive_desc backward(
      {prop_kind::backward, data, data, rows, eps, flags}, engine, forward);
  return std::pair(forward, backward);
}
auto batch_norm(const dnnl::engine& engine, const Desc& data, float eps, Flags flags) {
  using dnnl::prop_kind;
  dnnl::batch_normalization_forward::primitive_desc forward(
      {prop_kind::forward_training, data, eps, flags}, engine);
  return dnnl::batch_normalization_backward::primitive_desc(
      {prop_kind::backward, data, data, eps, flags}, engine, forward);
}
#endif
#if DNNL_VERSION_MAJOR * 100 + DNNL_VERSION_MINOR >= 309
constexpr std::optional<Flags> kRmsNorm = Flags::rms_norm;
#else
constexpr std::optional<Flags> kRmsNorm = {};
#endif

// Why oneDNN cannot do a case.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string version() {
  const dnnl_version_t* number = dnnl::version();
  return std::to_string(number->major) + "." + std::to_string(number->minor) + "." +
         std::to_string(number->patch);
}

Type type_of(const std::string& name) {
  return name == "f32" ? Type::f32 : name == "f16" ? Type::f16 : Type::bf16;
}

// One case: the memory of its operands, and the primitive that computes the gradient.
class Case {
 public:
  Case(const json& request, const dnnl::engine& engine) : engine_(engine), stream_(engine) {
    const std::vector<int64_t> shape = request["shape"];
    const Type type = type_of(request["dtype"]);
    const float eps = request["eps"];
    const std::string op = request["operator"];
    if (op == "rms_norm" && !kRmsNorm) throw Refusal("no RMSNorm in oneDNN " + version());
    try {
      if (op == "batch_norm") {
        make_batch_norm(request, shape, type, eps);
      } else {
        make_rows(request, shape, type, eps, op == "rms_norm");
      }
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
      throw Refusal("no " + op + " of " + std::string(request["dtype"]) + " in oneDNN " +
                    version() + " on this processor");
    }
  }

  double run() {
    const auto start = std::chrono::steady_clock::now();
    backward_.execute(stream_, operands_);
    stream_.wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  bool has(int operand) const { return operands_.contains(operand); }

  void write(int operand, const std::string& path) const {
    const dnnl::memory& memory = operands_.at(operand);
    std::ofstream file(path, std::ios::binary);
    file.write(static_cast<const char*>(memory.get_data_handle()),
               static_cast<std::streamsize>(memory.get_desc().get_size()));
    if (!file.flush()) throw std::runtime_error(path + ": cannot write it");
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  // Memory for an operand; what it holds comes from a file, if there is one.
  float* add(int operand, const Desc& desc, const std::string& path = {}) {
    const size_t bytes = desc.get_size();
    void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!data) throw std::bad_alloc();
    owned_.emplace_back(data);
    operands_[operand] = dnnl::memory(desc, engine_, data);
    if (!path.empty() &&
        !std::ifstream(path, std::ios::binary)
             .read(static_cast<char*>(data), static_cast<std::streamsize>(bytes))) {
      throw std::runtime_error(path + ": expected " + std::to_string(bytes) + " bytes");
    }
    return static_cast<float*>(data);
  }

  void add_data_and_parameters(const json& request, const Desc& data, int64_t channels,
                               bool has_beta) {
    const Desc parameters({channels}, Type::f32, Tag::a);
    add(DNNL_ARG_SRC, data, request["x"]);
    add(DNNL_ARG_DIFF_DST, data, request["dy"]);
    add(DNNL_ARG_DIFF_SRC, data);
    add(DNNL_ARG_SCALE, parameters, request["gamma"]);
    add(DNNL_ARG_DIFF_SCALE, parameters);
    if (!has_beta) return;
    add(DNNL_ARG_SHIFT, parameters);  // only oneDNN 2 asks for it, and does not read it
    add(DNNL_ARG_DIFF_SHIFT, parameters);
  }

  void make_rows(const json& request, const std::vector<int64_t>& shape, Type type, float eps,
                 bool rms) {
    const Desc data(shape, type, Tag::ab), rows({shape[0]}, Type::f32, Tag::a);
    const Flags flags = Flags::use_scale | (rms ? *kRmsNorm : Flags::use_shift);
    const auto [forward, backward] = layer_norm(engine_, data, rows, eps, flags);
    if (rms && subtracts_mean(flags)) {
      throw Refusal("the RMSNorm gradient of oneDNN " + version() + " is LayerNorm's");
    }
    add_data_and_parameters(request, data, shape[1], !rms);
    if (rms) {
      // The mean of the squares, as oneDNN's forward pass computes it; its y goes where dx will be.
      add(DNNL_ARG_VARIANCE, rows);
      operands_[DNNL_ARG_DST] = operands_.at(DNNL_ARG_DIFF_SRC);
      dnnl::layer_normalization_forward(forward).execute(stream_, operands_);
      stream_.wait();
    } else {
      add(DNNL_ARG_MEAN, rows, request["mean"]);
      float* variance = add(DNNL_ARG_VARIANCE, rows, request["rstd"]);
      for (int64_t row = 0; row < shape[0]; ++row) {
        const double rstd = variance[row];
        variance[row] = static_cast<float>(1 / (rstd * rstd) - eps);
      }
    }
    backward_ = dnnl::layer_normalization_backward(backward);
  }

  // dx of a row of ones is 0; LayerNorm's term mean(g), which oneDNN 3.13 subtracts here too, makes
  // it -1.
  bool subtracts_mean(Flags rms_flags) {
    const Desc data({1, 16}, Type::f32, Tag::ab), one({1}, Type::f32, Tag::a);
    const Desc parameters({16}, Type::f32, Tag::a);
    std::vector<float> ones(16, 1.0F), dx(16), dgamma(16);
    const auto backward = layer_norm(engine_, data, one, 0, rms_flags).second;
    dnnl::layer_normalization_backward(backward).execute(
        stream_, {{DNNL_ARG_SRC, {data, engine_, ones.data()}},
                  {DNNL_ARG_DIFF_DST, {data, engine_, ones.data()}},
                  {DNNL_ARG_VARIANCE, {one, engine_, ones.data()}},
                  {DNNL_ARG_SCALE, {parameters, engine_, ones.data()}},
                  {DNNL_ARG_DIFF_SRC, {data, engine_, dx.data()}},
                  {DNNL_ARG_DIFF_SCALE, {parameters, engine_, dgamma.data()}}});
    stream_.wait();
    return dx[0] < -0.5F;
  }

  // Images of height 1: with three axes oneDNN 2 takes its slow reference kernel.
  void make_batch_norm(const json& request, const std::vector<int64_t>& shape, Type type,
                       float eps) {
    const Desc data({shape[0], shape[1], 1, shape[2]}, type,
                    request["layout"] == "channels_last" ? Tag::nhwc : Tag::nchw);
    const Desc channels({shape[1]}, Type::f32, Tag::a);
    const auto backward = batch_norm(engine_, data, eps, Flags::use_scale | Flags::use_shift);
    add_data_and_parameters(request, data, shape[1], true);
    add(DNNL_ARG_MEAN, channels, request["mean"]);
    add(DNNL_ARG_VARIANCE, channels, request["variance"]);
    backward_ = dnnl::batch_normalization_backward(backward);
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<std::unique_ptr<void, Free>> owned_;
  std::unordered_map<int, dnnl::memory> operands_;
  dnnl::primitive backward_;
};

// TBB takes a thread for each processor that it may use, and no advice; OpenMP is told by the
// environment.
void limit_threads([[maybe_unused]] int threads) {
#if DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_OMP
  cpu_set_t allowed, chosen;
  CPU_ZERO(&chosen);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&chosen) < threads; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &chosen);
  }
  sched_setaffinity(0, sizeof(chosen), &chosen);
#endif
}

class Peer {
 public:
  json answer(const json& request) {
    const std::string what = request["do"];
    if (what == "hello") return hello(request["threads"]);
    if (what == "prepare") return prepare(request);
    if (what == "run") return run(request["repeat"]);
    if (what == "check") return check(request);
    if (what == "release") return release();
    throw std::runtime_error("expected hello, prepare, run, check or release; got '" + what + "'");
  }

 private:
  json hello(int threads) {
    limit_threads(threads);
    if (dnnl::engine::get_count(dnnl::engine::kind::cpu) == 0) {
      return {{"ok", false},
              {"why", "oneDNN " + version() +
                          " finds no CPU device; if it is Intel's build on SYCL, set "
                          "OCL_ICD_FILENAMES to the libintelocl.so beside its libdnnl.so"}};
    }
    engine_ = dnnl::engine(dnnl::engine::kind::cpu, 0);
    return {{"name", "onednn"}, {"version", version()}};
  }

  json prepare(const json& request) {
    case_.reset();
    try {
      case_ = std::make_unique<Case>(request, engine_);
    } catch (const Refusal& refusal) {
      return {{"ok", false}, {"why", refusal.what()}};
    }
    return {{"ok", true}};
  }

  Case& prepared() {
    if (!case_) throw std::runtime_error("expected prepare first");
    return *case_;
  }

  json run(int repeat) {
    prepared().run();
    std::vector<double> seconds(static_cast<size_t>(repeat));
    for (double& each : seconds) each = prepared().run();
    return {{"ok", true}, {"seconds", seconds}};
  }

  json check(const json& request) {
    prepared().write(DNNL_ARG_DIFF_SRC, request["dx"]);
    prepared().write(DNNL_ARG_DIFF_SCALE, request["dgamma"]);
    if (prepared().has(DNNL_ARG_DIFF_SHIFT))
      prepared().write(DNNL_ARG_DIFF_SHIFT, request["dbeta"]);
    return {{"ok", true}};
  }

  json release() {
    case_.reset();
    malloc_trim(0);  // the environment told malloc to keep everything
    return {{"ok", true}};
  }

  dnnl::engine engine_;
  std::unique_ptr<Case> case_;
};

}  // namespace

int main() {
  try {
    Peer peer;
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << peer.answer(json::parse(line)).dump() << std::endl;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
