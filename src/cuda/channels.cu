// Which kernel a BatchNorm takes: a function of shape, dtype and the axis that is contiguous (and
// of the kind of GPU).
#include <string>

#include "cuda/channel.cuh"
#include "cuda/channels.hpp"
#include "cuda/channels_cluster_tile.hpp"
#include "cuda/channels_team_deal.hpp"
#include "cuda/device.hpp"

namespace normgrad::cuda {
namespace {

// Teams are for long runs that start and end at multiples of 16 bytes, which they copy in bulk.
// They beat clusters of 16 blocks, which leave multiprocessors out, those whose blocks fill half a
// multiprocessor each, and, one block to a team, those that leave a quarter of it unused. (Measured
// on an H200.)
bool suits_teams(const ChannelsProblem& problem) {
  constexpr int64_t kLongRun = 1536, kFilled = 40 * 1024;
  const int64_t bytes = problem.length * static_cast<int64_t>(size_of(problem.dtype));
  if (bytes < kLongRun || bytes % 16 != 0) return false;
  const Tile tile = tile_of(problem);
  if (tile.blocks == 1) return false;
  const bool overlaps = tile.blocks > 1 && tile.blocks <= 8 && tile.data_bytes() <= Tile::kQuarter;
  if (overlaps && tile.data_bytes() >= kFilled) return false;
  const Deal deal = deal_of(problem);
  return deal.blocks == 1 || (deal.overlaps() && !overlaps);
}

// From 2.5 MB of x on channels_small beats clusters, if runs are of 128 bytes and more; and where
// clusters go by elements, since a group's runs do not end at multiples of 16 bytes. (Measured on
// an H200.)
bool suits_small(const ChannelsProblem& problem) {
  constexpr int64_t kRun = 128, kBytes = 5 * (int64_t{1} << 19);
  const int64_t bytes = problem.length * static_cast<int64_t>(size_of(problem.dtype));
  if (bytes % 16 == 0) {
    return bytes >= kRun && problem.samples * problem.channels >= kBytes / bytes;
  }
  const Tile tile = tile_of(problem);
  return tile.blocks == 0 || tile.group * bytes % 16 != 0;
}

// A block of channels_resident has at least 64 bytes of a row, or threads without any.
bool fills_units(const ChannelsProblem& problem) {
  return problem.channels * static_cast<int64_t>(size_of(problem.dtype)) >= 64;
}

}  // namespace

Status check_fused(const char* kernel, const ChannelsProblem& problem) {
  if (problem.step != ChannelsStep::kAll || !problem.has_dx || !needs_sums(problem) ||
      problem.channels == 0) {
    return {Code::kUnsupportedDevice,
            std::string(kernel) + ": expected dx and sums to make it of, in one step"};
  }
  return check_hopper(kernel);
}

Status choose_channels(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel) {
  if (!check_fused("", problem).ok()) return choose_channels_two_pass(problem, kernel);
  if (choose_channels_columns(problem, kernel).ok()) return {};
  if (fills_units(problem) && choose_channels_resident(problem, kernel).ok()) return {};
  const bool teams = suits_teams(problem);
  if ((teams || suits_small(problem)) && choose_channels_small(problem, kernel).ok()) return {};
  if (teams && choose_channels_team(problem, kernel).ok()) return {};
  if (choose_channels_cluster(problem, kernel).ok()) return {};
  return choose_channels_two_pass(problem, kernel);
}

}  // namespace normgrad::cuda
