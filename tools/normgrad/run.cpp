// normgrad run: the gradients of the tensors in a file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

#include "arguments.hpp"
#include "commands.hpp"
#include "gpu_operands.hpp"
#include "normgrad/cuda.hpp"
#include "normgrad/normgrad.hpp"
#include "safetensors.hpp"

namespace normgrad::tool {
namespace {

// The tensors of the input file, and which of them the operator has asked for.
class Inputs {
 public:
  explicit Inputs(const std::string& path) : path_(path), tensors_(read_safetensors(path)) {}

  // Null if the file has no such tensor.
  const StoredTensor* find(const std::string& name) {
    asked_.insert(name);
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }

  const StoredTensor& get(const std::string& name) {
    if (const StoredTensor* stored = find(name)) return *stored;
    throw std::runtime_error(
        fmt::format("{}: expected a tensor '{}'; got {}", path_, name, names()));
  }

  // The one of several tensors that the file has; its name picks the form of the statistics.
  std::string pick(const std::vector<std::string>& choices) {
    std::vector<std::string> present;
    for (const std::string& name : choices) {
      if (find(name)) present.push_back(name);
    }
    if (present.size() == 1) return present[0];
    throw std::runtime_error(fmt::format("{}: expected exactly one of the tensors {}; got {}",
                                         path_, fmt::join(choices, ", "), names()));
  }

  // A tensor that nothing asked for is a misspelt name or another operator's.
  void refuse_others() const {
    for (const auto& [name, stored] : tensors_) {
      if (asked_.contains(name)) continue;
      throw std::runtime_error(fmt::format("{}: expected only the tensors {}; got '{}' too", path_,
                                           fmt::join(asked_, ", "), name));
    }
  }

 private:
  std::string names() const {
    std::vector<std::string> names;
    for (const auto& [name, stored] : tensors_) names.push_back(name);
    return names.empty() ? "no tensor" : fmt::format("{}", fmt::join(names, ", "));
  }

  std::string path_;
  StoredTensors tensors_;
  std::set<std::string> asked_;
};

// Reads what all operators have: x, dy, gamma.
template <class Call>
void take_data(Inputs& inputs, const std::string& x_name, Call& call, Buffers& buffers) {
  const StoredTensor& x = inputs.get(x_name);
  const StoredTensor& dy = inputs.get("dy");
  call.x = x.tensor;
  call.dy = dy.tensor;
  buffers.x = x.data.data();
  buffers.dy = dy.data.data();
  call.names.x = x_name == "x" ? "x" : "x_hat";
  if (const StoredTensor* gamma = inputs.find("gamma")) {
    call.gamma = gamma->tensor;
    buffers.gamma = gamma->data.data();
  }
}

template <class Call>
void take_statistics(Inputs& inputs, const std::string& spread_name, Call& call, Buffers& buffers) {
  if (spread_name == "std") {
    call.statistics = Statistics::kXHatStd;
    call.names.spread = "std";
  } else {
    const bool is_rstd = spread_name == "rstd";
    call.statistics = is_rstd ? Statistics::kMeanRstd : Statistics::kMeanVariance;
    call.names.spread = is_rstd ? "rstd" : "variance";
    const StoredTensor& mean = inputs.get("mean");
    call.mean = mean.tensor;
    buffers.mean = mean.data.data();
  }
  const StoredTensor& spread = inputs.get(spread_name);
  call.spread = spread.tensor;
  buffers.spread = spread.data.data();
}

// Adds the outputs that were asked for to the call, allocates them and runs it.
template <class Call>
StoredTensors execute(const RunOptions& options, Call& call, Buffers& buffers) {
  const std::vector<int64_t>& shape = call.x.shape;
  const bool batch = options.op == Op::kBatchNorm;
  const int64_t parameters =
      batch ? (shape.size() == 3 ? shape[1] : 0) : (shape.empty() ? 0 : shape.back());
  const DType params_dtype =
      options.params_dtype.value_or(call.gamma ? call.gamma->dtype : call.x.dtype);
  const Tensor params = {params_dtype, {parameters}};

  StoredTensors outputs;
  const auto output = [&](const char* name, const Tensor& tensor,
                          std::optional<Tensor>& operand) -> void* {
    const auto& wanted = options.outputs;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) {
      return nullptr;
    }
    operand = tensor;
    const int64_t count =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    StoredTensor& stored = outputs[name];
    stored.tensor = tensor;
    stored.data.resize(static_cast<size_t>(count) * size_of(tensor.dtype));
    return stored.data.data();
  };
  buffers.dx = output("dx", call.x, call.dx);
  buffers.dgamma = output("dgamma", params, call.dgamma);
  if constexpr (requires { call.dbeta; }) buffers.dbeta = output("dbeta", params, call.dbeta);

  const Plan plan(call, options.device);
  const size_t size = plan.workspace_size();
  if (options.device == Device::kCuda) {
    GpuOperands on_gpu(call, buffers);
    const GpuMemory workspace(static_cast<int64_t>(size));
    plan.run(on_gpu.buffers(), workspace.get(), size);
    require(cuda::synchronize());
    on_gpu.copy_out();
  } else {
    std::vector<std::byte> workspace(size);
    plan.run(buffers, workspace.data(), size);
  }
  return outputs;
}

StoredTensors compute(const RunOptions& options, Inputs& inputs) {
  Buffers buffers;
  if (options.op == Op::kRmsNorm) {
    RmsNormBackward call;
    take_data(inputs, "x", call, buffers);
    inputs.refuse_others();
    call.eps = options.eps;
    return execute(options, call, buffers);
  }
  if (options.op == Op::kBatchNorm) {
    BatchNormBackward call;
    take_data(inputs, "x", call, buffers);
    take_statistics(inputs, inputs.pick({"rstd", "variance"}), call, buffers);
    inputs.refuse_others();
    call.eps = options.eps;
    call.frozen = options.frozen;
    return execute(options, call, buffers);
  }
  LayerNormBackward call;
  const std::string spread = inputs.pick({"std", "rstd", "variance"});
  take_data(inputs, spread == "std" ? "x_hat" : "x", call, buffers);
  take_statistics(inputs, spread, call, buffers);
  inputs.refuse_others();
  call.eps = options.eps;
  return execute(options, call, buffers);
}

}  // namespace

int run_run(const RunOptions& options) {
  if (options.frozen && options.op != Op::kBatchNorm) {
    throw std::runtime_error("--frozen: expected batch_norm_backward, the only operator with it");
  }
  if (options.op == Op::kRmsNorm &&
      std::count(options.outputs.begin(), options.outputs.end(), "dbeta")) {
    throw std::runtime_error("--outputs: expected dx or dgamma for rms_norm_backward; got dbeta");
  }
  Inputs inputs(options.input);
  const StoredTensors outputs = compute(options, inputs);
  write_safetensors(options.output, outputs);
  for (const auto& [name, stored] : outputs) {
    fmt::print("{}: {} {}\n", name, name_of(stored.tensor.dtype),
               format_shape(stored.tensor.shape));
  }
  return 0;
}

}  // namespace normgrad::tool
