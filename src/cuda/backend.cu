// The GPU's backends: "cuda:auto", which takes the best kernel for a shape, and one for each kernel
// that can be forced by its name.
#include "cuda/channels.hpp"
#include "cuda/device.hpp"
#include "cuda/kernels.hpp"
#include "normgrad/cuda.hpp"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

// The kernel that kChoose has for the problem, if the current GPU is one for it.
template <auto kChoose, class Problem>
Status choose(const Problem& problem, Kernel<Problem>& kernel) {
  NORMGRAD_RETURN_IF_ERROR(check_gpu());
  return kChoose(problem, kernel);
}

template <auto kRows = &choose_rows, auto kChannels = &choose_channels>
constexpr Backend make_backend(const char* name) {
  return {name,
          Device::kCuda,
          &choose<&choose_rows_forward, RowsForwardProblem>,
          &choose<&choose_channels_forward, ChannelsForwardProblem>,
          &choose<kRows, RowsProblem>,
          &choose<kChannels, ChannelsProblem>,
          &copy};
}

}  // namespace

std::span<const Backend> backends() {
  static constexpr Backend kBackends[] = {
      make_backend("cuda:auto"),
      make_backend<&choose_rows_across>("cuda:rows_across"),
      make_backend<&choose_small_rows>("cuda:rows_small"),
      make_backend<&choose_ring_rows>("cuda:rows_ring"),
      make_backend<&choose_split_rows>("cuda:rows_split"),
      make_backend<&choose_rows, &choose_channels_columns>("cuda:channels_columns"),
      make_backend<&choose_rows, &choose_channels_resident>("cuda:channels_resident"),
      make_backend<&choose_rows, &choose_channels_small>("cuda:channels_small"),
      make_backend<&choose_rows, &choose_channels_cluster>("cuda:channels_cluster"),
      make_backend<&choose_rows, &choose_channels_team>("cuda:channels_team"),
      make_backend<&choose_rows, &choose_channels_two_pass>("cuda:channels_two_pass"),
  };
  static const size_t count = device_count() > 0 ? std::size(kBackends) : 0;
  return {kBackends, count};
}

}  // namespace normgrad::cuda
