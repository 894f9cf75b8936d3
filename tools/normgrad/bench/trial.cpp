#include "bench/trial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "bench/pieces.hpp"
#include "calls.hpp"
#include "random.hpp"
#include "reference/bound.hpp"
#include "reference/elements.hpp"

namespace normgrad::tool {
namespace {

using reference::Call;

// Primes, so that neither rows nor the pairs of x and dy repeat.
constexpr int64_t kPeriodX = 65521, kPeriodDy = 65519;

Call call_of(const BenchCase& each, bool saved_rstd) {
  const std::vector<int64_t>& extents = each.shape.extents;
  if (each.shape.layout == BenchLayout::kChannelsLast) {
    return make_call(each.shape.op, {extents[0], extents[2], extents[1]}, each.dtype, 2);
  }
  Call call = make_call(each.shape.op, extents, each.dtype);
  auto* const rms_norm = std::get_if<RmsNormBackward>(&call);
  if (rms_norm && saved_rstd) rms_norm->spread = Tensor{DType::kF32, {extents[0]}};
  return call;
}

// center + width * normal, again and again after `period` values.
void fill(const std::optional<Tensor>& tensor, const void* memory, int64_t period, double center,
          double width) {
  if (!tensor) return;
  Random random(static_cast<uint64_t>(period));
  std::vector<double> values(static_cast<size_t>(std::min(reference::count(*tensor), period)));
  for (double& value : values) value = center + width * random.normal();
  char* const bytes = static_cast<char*>(const_cast<void*>(memory));
  reference::scatter({tensor->dtype, {static_cast<int64_t>(values.size())}}, bytes, values);
  const int64_t block = period * static_cast<int64_t>(size_of(tensor->dtype));
  const int64_t total = bytes_of(tensor);
  for (int64_t at = block; at < total; at += block) {
    std::memcpy(bytes + at, bytes, static_cast<size_t>(std::min(block, total - at)));
  }
}

// mean and variance of every channel of x.
void fill_statistics(const Call& call, const Buffers& buffers) {
  for_each_piece(pieces_of(call, buffers), [](const Piece& piece) {
    const auto& batch_norm = std::get<BatchNormBackward>(piece.call);
    const auto channels = static_cast<size_t>(piece.end - piece.begin);
    const std::vector<double> x = reference::gather(batch_norm.x, piece.buffers.x);
    const double per_channel = static_cast<double>(x.size()) / static_cast<double>(channels);
    // Channels are the second of three axes, or the last.
    const auto length =
        batch_norm.channel_axis == 1 ? static_cast<size_t>(batch_norm.x.shape[2]) : 1;
    const auto channel_of = [&](size_t i) { return i / length % channels; };
    std::vector<double> mean(channels), variance(channels);
    for (size_t i = 0; i < x.size(); ++i) mean[channel_of(i)] += x[i] / per_channel;
    for (size_t i = 0; i < x.size(); ++i) {
      const double distance = x[i] - mean[channel_of(i)];
      variance[channel_of(i)] += distance * distance / per_channel;
    }
    reference::scatter(batch_norm.mean, const_cast<void*>(piece.buffers.mean), mean);
    reference::scatter(batch_norm.spread, const_cast<void*>(piece.buffers.spread), variance);
  });
}

// An output of the oracle: its values and the scales of their bounds.
struct Exact {
  std::vector<double> values, scales;

  void add(const Exact& more) {
    values.resize(more.values.size());
    scales.resize(more.scales.size());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += more.values[i];
      scales[i] += more.scales[i];
    }
  }
};

// What is wrong with a tensor that holds sums of `terms` terms; nothing with one that is not there.
std::string judge(const char* name, const std::optional<Tensor>& tensor, const void* data,
                  const Exact& exact, double gate, int64_t terms) {
  if (!tensor) return "";
  return reference::compare(name, *tensor, data, exact.values, exact.scales, gate, terms)
      .first_failure;
}

// The first sentence, of any.
std::string first(const std::vector<std::string>& sentences) {
  for (const std::string& each : sentences) {
    if (!each.empty()) return each;
  }
  return "";
}

// All bits set: NaN in every type, so what is not written is not right.
void spoil(const std::optional<Tensor>& tensor, void* data) {
  if (tensor) std::memset(data, 0xFF, static_cast<size_t>(bytes_of(tensor)));
}

}  // namespace

Trial::Trial(const BenchCase& description, bool saved_rstd)
    : call_(call_of(description, saved_rstd)), operands_(call_) {
  const Operands operands = operands_of(call_);
  const bool layer_norm = description.shape.op == Op::kLayerNorm;
  fill(operands.x, buffers().x, kPeriodX, layer_norm ? 0 : 0.5, layer_norm ? 1 : 2);
  fill(operands.dy, buffers().dy, kPeriodDy, 0.1, 1);
  fill(operands.gamma, buffers().gamma, kPeriodX, 1, 0.1);
  if (layer_norm) fill(operands.spread, buffers().spread, kPeriodDy, 2, 0.2);
  if (saved_rstd && description.shape.op == Op::kRmsNorm) {
    fill(operands.spread, buffers().spread, kPeriodDy, 0.5, 0.05);
  }
  if (description.shape.op == Op::kBatchNorm) fill_statistics(call_, buffers());

  if (saved_rstd || description.shape.layout == BenchLayout::kChannelsLast) {
    const Plan plan = std::visit([](const auto& call) { return Plan(call); }, call_);
    const size_t size = plan.workspace_size();
    run_ = [plan, size, workspace = allocate(size), pointers = buffers()] {
      plan.run(pointers, workspace.get(), size);
    };
  } else {
    run_ = [call = InfiniopCall(call_), pointers = buffers()] { call.compute(pointers); };
  }
}

int64_t Trial::data_bytes() const { return bytes_of(operands_of(call_).x); }

int64_t Trial::minimal_bytes() const {
  const Operands all = operands_of(call_);
  return bytes_of(all.x) + bytes_of(all.dy) + bytes_of(all.gamma) + bytes_of(all.mean) +
         bytes_of(all.spread) + bytes_of(all.dx) + bytes_of(all.dgamma) + bytes_of(all.dbeta);
}

std::string Trial::verify() const {
  const Operands all = operands_of(call_);
  spoil(all.dx, buffers().dx);
  spoil(all.dgamma, buffers().dgamma);
  spoil(all.dbeta, buffers().dbeta);
  run();
  return what_is_wrong();
}

std::string Trial::what_is_wrong() const {
  const Operands all = operands_of(call_);
  const reference::Gates gates = reference::kProven;
  const int64_t terms = reference::count(*all.x) / reference::count(*all.gamma);
  const bool batch = std::holds_alternative<BatchNormBackward>(call_);
  const auto judge_params = [&](const Operands& operands, const Buffers& data, const Exact& dgamma,
                                const Exact& dbeta) {
    return first({judge("dgamma", operands.dgamma, data.dgamma, dgamma, gates.dgamma, terms),
                  judge("dbeta", operands.dbeta, data.dbeta, dbeta, gates.dbeta, terms)});
  };
  std::mutex mutex;
  std::string why;
  Exact sum_dgamma, sum_dbeta;  // over pieces of rows; a piece of channels has its own
  for_each_piece(pieces_of(call_, buffers()), [&](const Piece& piece) {
    const reference::Gradients exact = oracle(piece.call, piece.buffers);
    const Operands own = operands_of(piece.call);
    const Exact dgamma = {exact.dgamma, exact.dgamma_scale},
                dbeta = {exact.dbeta, exact.dbeta_scale};
    const std::string wrong =
        first({judge("dx", own.dx, piece.buffers.dx, {exact.dx, exact.dx_scale}, gates.dx, 0),
               batch ? judge_params(own, piece.buffers, dgamma, dbeta) : ""});
    const std::scoped_lock lock(mutex);
    if (!wrong.empty() && why.empty()) {
      why = fmt::format("{} {} to {}: {}", batch ? "channels" : "rows", piece.begin, piece.end - 1,
                        wrong);
    }
    if (batch) return;
    sum_dgamma.add(dgamma);
    sum_dbeta.add(dbeta);
  });
  return first({why, batch ? "" : judge_params(all, buffers(), sum_dgamma, sum_dbeta)});
}

}  // namespace normgrad::tool
