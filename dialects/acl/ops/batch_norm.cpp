// The checks of the three BatchNorm operators.
#include "batch_norm.hpp"

namespace normgrad::acl {

int32_t check_batch_norm(const aclTensor* input, const aclTensor* grad_out,
                         const aclTensor* grad_input, bool channels_last,
                         Arguments per_channel) noexcept {
  const Arguments data = {{"gradOut", grad_out}, {"input", input}, {"gradInput", grad_input}};
  if (const int32_t status = check_dtypes(data)) return status;
  if (const int32_t status = check_dtypes(per_channel)) return status;
  if (const int32_t status = check_dtype({"gradOut", grad_out}, input->dtype, " as input")) {
    return status;
  }
  if (const int32_t status = check_ranks(data, 2, 8)) return status;
  const Shape& shape = input->view.shape;
  const int64_t channels = shape[channel_axis(input, channels_last)];
  if (channels == 0) {
    return refuse(kInvalid, "input: expected at least one channel, got the shape %s",
                  text(shape).characters);
  }
  for (const Argument& argument : data) {
    if (const int32_t status = check_shape(argument, shape, " as input")) return status;
  }
  for (const Argument& argument : per_channel) {
    if (!argument.tensor) continue;
    const Shape& own = argument.tensor->view.shape;
    if (own.size() != 1 || own[0] != channels) {
      return refuse(kInvalid, "%s: expected the shape [%lld], one element per channel, got %s",
                    argument.name, static_cast<long long>(channels), text(own).characters);
    }
  }
  if (const int32_t status = check_layouts(data)) return status;
  return check_layouts(per_channel);
}

}  // namespace normgrad::acl
