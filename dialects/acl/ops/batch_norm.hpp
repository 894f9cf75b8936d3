// What the three BatchNorm operators share.
#pragma once

#include "check.hpp"

namespace normgrad::acl {

// Which formats an operator takes: those with the channels on axis 1, or also NHWC and NDHWC.
enum class Formats { kChannelsFirst, kAny };

// Types, formats, ranks, shapes and layouts, in this order: input and gradOut are alike, gradInput
// has their shape, and `per_channel` hold one element per channel. There must be a channel.
int32_t check_batch_norm(const aclTensor* input, const aclTensor* grad_out,
                         const aclTensor* grad_input, Formats formats,
                         Arguments per_channel) noexcept;

inline bool has_channels_last(const aclTensor* tensor) {
  return tensor->format == ACL_FORMAT_NHWC || tensor->format == ACL_FORMAT_NDHWC;
}

inline int channel_axis(const aclTensor* input) {
  return has_channels_last(input) ? static_cast<int>(input->view.shape.size()) - 1 : 1;
}

}  // namespace normgrad::acl
