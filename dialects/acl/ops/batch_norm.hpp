// What the three BatchNorm operators share.
#pragma once

#include "check.hpp"

namespace normgrad::acl {

// Types, ranks, shapes and layouts, in this order: input and gradOut are alike, gradInput has their
// shape, and `per_channel` hold one element per channel. There must be a channel.
int32_t check_batch_norm(const aclTensor* input, const aclTensor* grad_out,
                         const aclTensor* grad_input, bool channels_last,
                         Arguments per_channel) noexcept;

inline int channel_axis(const aclTensor* input, bool channels_last) {
  return channels_last ? static_cast<int>(input->view.shape.size()) - 1 : 1;
}

}  // namespace normgrad::acl
