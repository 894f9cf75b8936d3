#include "ops/staging.hpp"

#include <limits>
#include <span>
#include <string>

namespace normgrad {
namespace {

// From the operand to the kernel's view of it, or back. Axes of extent 1 are dropped, and
// neighbours without a gap on either side are one.
CopyProblem copy_of(const Operand& operand, bool back) {
  View outside = view_of(operand.tensor), inside;
  // The kernel's shape merges axes of the operand's, and copies have no gaps: this cannot fail.
  reshape(operand.view, {outside.extents.data(), static_cast<size_t>(outside.rank)}, inside);
  if (back) std::swap(outside, inside);
  CopyProblem problem{.from_dtype = outside.dtype, .to_dtype = inside.dtype};
  problem.offset = operand.offset;
  int& rank = problem.rank;
  for (int axis = 0; axis < outside.rank; ++axis) {
    const int64_t extent = outside.extents[axis];
    if (extent == 1) continue;
    const bool merges = rank > 0 && problem.from[rank - 1] == outside.strides[axis] * extent &&
                        problem.to[rank - 1] == inside.strides[axis] * extent;
    if (!merges) problem.extents[rank++] = 1;
    problem.extents[rank - 1] *= extent;
    problem.from[rank - 1] = outside.strides[axis];
    problem.to[rank - 1] = inside.strides[axis];
  }
  return problem;
}

}  // namespace

Status Staging::plan(const Operands& operands, size_t& workspace, std::string& kernel) {
  for (const Role& role : kRoles) {
    const Operand& operand = operands.*role.operand;
    if (!operand.staged || operand.extent.elements == 0) continue;
    const size_t offset = (workspace + kWorkspaceAlignment - 1) & -kWorkspaceAlignment;
    const auto elements = static_cast<size_t>(operand.extent.elements);
    const size_t room = std::numeric_limits<ptrdiff_t>::max() - kWorkspaceAlignment - offset;
    if (elements > room / size_of(operand.view.dtype)) {
      return {Code::kBadShape,
              std::string(operand.name) + ": its copy needs more than 2^63 - 1 bytes of workspace"};
    }
    workspace = offset + elements * size_of(operand.view.dtype);
    stages_.push_back({role, !operand.output || operand.updated, operand.output,
                       copy_of(operand, false), copy_of(operand, true), offset});
    kernel += std::string(", copy of ") + operand.name;
  }
  return {};
}

Status Staging::copy_in(Copy copy, Buffers& buffers, void* workspace, void* stream) const {
  for (const Stage& stage : stages_) {
    void* inside = static_cast<char*>(workspace) + stage.offset;
    if (stage.in) {
      NORMGRAD_RETURN_IF_ERROR(copy(stage.problem, stage.role.data(buffers), inside, stream));
    }
    stage.role.set(buffers, inside);
  }
  return {};
}

Status Staging::copy_out(Copy copy, const Buffers& buffers, void* workspace, void* stream) const {
  for (const Stage& stage : stages_) {
    if (!stage.out) continue;
    const void* inside = static_cast<char*>(workspace) + stage.offset;
    void* outside = const_cast<void*>(stage.role.data(buffers));
    NORMGRAD_RETURN_IF_ERROR(copy(stage.back, inside, outside, stream));
  }
  return {};
}

}  // namespace normgrad
