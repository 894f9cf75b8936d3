// A LayerNorm problem in any dtypes and any layout of its tensors, with its oracle.
#pragma once

#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "acl_call.hpp"
#include "reference/bound.hpp"

namespace acl_test {

using normgrad::Status;
using normgrad::Tensor;
using normgrad::reference::Gradients;

using Shape = std::vector<int64_t>;
inline constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
enum { kGradOut, kInput, kMean, kRstd, kWeight, kBias, kGradInput, kGradWeight, kGradBias };

inline int64_t product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

inline std::vector<double> random_values(int64_t size, unsigned seed, double centre,
                                         double spread) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(centre, spread);
  std::vector<double> values(static_cast<size_t>(size));
  for (double& value : values) value = normal(engine);
  return values;
}

// Empty, or what is wrong with an output.
inline std::string wrong(const char* name, const Array& array, const std::vector<double>& values,
                         const std::vector<double>& scale, double k, int64_t summed) {
  if (!array.intact()) return std::string(name) + " is written outside its elements";
  return normgrad::reference::compare(name, array.tensor(), array.data(), values, scale, k, summed)
      .first_failure;
}

// What a call is about, whatever the layout of its tensors.
struct Problem {
  Shape shape = {2, 3, 4, 5};
  size_t normalized = 2;  // axes
  DType data = DType::kF32;
  DType mean = DType::kF32, rstd = DType::kF32;
  std::optional<DType> weight = DType::kF32;
  std::array<DType, 3> outputs = {};  // gradInputOut, gradWeightOut, gradBiasOut
  unsigned mask = 7;
  Shape statistics = {2, 3, 1, 1};
  Shape parameters = {4, 5};  // of gradWeightOut and gradBiasOut

  Shape row() const { return {shape.end() - static_cast<std::ptrdiff_t>(normalized), shape.end()}; }
  int64_t rows() const {
    return product({shape.begin(), shape.end() - static_cast<std::ptrdiff_t>(normalized)});
  }
};

struct Layout {
  const char* name;
  Order grad_out, input, statistics, parameters, grad_input, outputs;
};
inline constexpr Layout kDense = {"dense",       Order::kDense, Order::kDense, Order::kDense,
                                  Order::kDense, Order::kDense, Order::kDense};
inline constexpr Layout kLayouts[] = {
    {"stepped", Order::kStepped, Order::kStepped, Order::kStepped, Order::kStepped, Order::kStepped,
     Order::kStepped},
    {"transposed", Order::kTransposed, Order::kTransposed, Order::kTransposed, Order::kTransposed,
     Order::kTransposed, Order::kTransposed},
    {"inputs", Order::kGapped, Order::kScattered, Order::kScattered, Order::kGapped, Order::kDense,
     Order::kDense},
    {"outputs", Order::kDense, Order::kDense, Order::kDense, Order::kDense, Order::kScattered,
     Order::kGapped},
    {"mixed", Order::kTransposed, Order::kDense, Order::kGapped, Order::kScattered, Order::kGapped,
     Order::kStepped},
};

// The problem in memory.
class LayerNorm {
 public:
  LayerNorm(const Problem& problem, const Layout& layout) : problem_(problem) {
    const int64_t elements = product(problem.shape), cols = product(problem.row());
    const auto add = [&](DType dtype, const Shape& shape, Order order,
                         const std::vector<double>& values = {}) {
      arrays_.emplace_back(tensor_of(dtype, shape, order), values);
    };
    const int64_t statistics = product(problem.statistics);
    add(problem.data, problem.shape, layout.grad_out, random_values(elements, 1, 0.3, 1));
    add(problem.data, problem.shape, layout.input, random_values(elements, 2, 1, 2));
    add(problem.mean, problem.statistics, layout.statistics, random_values(statistics, 3, 1, 0.2));
    add(problem.rstd, problem.statistics, layout.statistics,
        random_values(statistics, 4, 0.5, 0.1));
    add(problem.weight.value_or(problem.data), problem.row(), layout.parameters,
        random_values(cols, 5, 1, 0.5));
    add(DType::kF32, problem.row(), layout.parameters);  // a bias of NaN: nobody reads it
    add(problem.outputs[0], problem.shape, layout.grad_input);
    add(problem.outputs[1], problem.parameters, layout.outputs);
    add(problem.outputs[2], problem.parameters, layout.outputs);
  }

  Array& operator[](int which) { return arrays_[static_cast<size_t>(which)]; }
  const Array& operator[](int which) const { return arrays_[static_cast<size_t>(which)]; }
  bool wanted(int output) const { return problem_.mask >> (output - kGradInput) & 1; }

  // Outputs that are masked off are null, or there and not to be written.
  Call call(bool null_outputs, bool bias) const {
    Call call = {.op = Op::kLayerNorm, .tensors = {}, .normalized_shape = problem_.row()};
    for (int i = kGradOut; i <= kGradBias; ++i) {
      const bool absent = (i == kWeight && !problem_.weight) || (i == kBias && !bias) ||
                          (i >= kGradInput && null_outputs && !wanted(i));
      call.tensors.push_back(absent ? kAbsent : (*this)[i].view());
    }
    for (size_t i = 0; i < 3; ++i) (*call.mask)[i] = problem_.mask >> i & 1;
    return call;
  }
  Status run(bool null_outputs = true, bool bias = false) const {
    return acl_test::run(call(null_outputs, bias));
  }

  Gradients oracle() const {
    normgrad::reference::Rows rows;
    rows.rows = problem_.rows();
    rows.cols = product(problem_.row());
    rows.x = (*this)[kInput].values();
    rows.dy = (*this)[kGradOut].values();
    rows.gamma = problem_.weight ? (*this)[kWeight].values()
                                 : std::vector<double>(static_cast<size_t>(rows.cols), 1);
    rows.mean = (*this)[kMean].values();
    rows.spread = (*this)[kRstd].values();
    return rows_backward(rows);
  }

  // Empty, or what is wrong. The outputs of an earlier run of the same problem have the same bits.
  std::string wrong(const Gradients& ref, const LayerNorm* earlier = nullptr) const {
    for (int output = kGradInput; output <= kGradBias; ++output) {
      const std::string name = names(Op::kLayerNorm)[static_cast<size_t>(output)];
      const Array& array = (*this)[output];
      if (!wanted(output)) {
        if (!array.unwritten()) return name + " is masked off, but written";
        continue;
      }
      if (!array.intact()) return name + " is written outside its elements";
      if (earlier && array.values() != (*earlier)[output].values()) return name + ": other bits";
      if (std::string why = beyond(output, name.c_str(), ref); !why.empty()) return why;
    }
    return {};
  }

 private:
  std::string beyond(int output, const char* name, const Gradients& ref) const {
    using normgrad::reference::kProven;
    const Array& array = (*this)[output];
    const auto check = [&](const auto& values, const auto& scale, double k, int64_t summed) {
      return normgrad::reference::compare(name, array.tensor(), array.data(), values, scale, k,
                                          summed)
          .first_failure;
    };
    if (output == kGradInput) return check(ref.dx, ref.dx_scale, kProven.dx, 0);
    if (output == kGradWeight) {
      return check(ref.dgamma, ref.dgamma_scale, kProven.dgamma, problem_.rows());
    }
    return check(ref.dbeta, ref.dbeta_scale, kProven.dbeta, problem_.rows());
  }

  Problem problem_;
  std::vector<Array> arrays_;
};

}  // namespace acl_test
