// The checks of the three BatchNorm operators.
#include "batch_norm.hpp"

namespace normgrad::acl {
namespace {

// A format says where the channels are; blocked ones cannot be seen as strides.
int32_t check_format(const Argument& argument, Formats formats) {
  if (!argument.tensor) return kSuccess;
  switch (argument.tensor->format) {
    case ACL_FORMAT_ND:
    case ACL_FORMAT_NC:
    case ACL_FORMAT_NCL:
    case ACL_FORMAT_NCHW:
    case ACL_FORMAT_NCDHW:
      return kSuccess;
    default:
      if (formats == Formats::kAny && has_channels_last(argument.tensor)) return kSuccess;
      return refuse(kInvalid, "%s: expected the format ND, NC, NCL, NCHW%s, got aclFormat %d",
                    argument.name,
                    formats == Formats::kAny ? ", NCDHW, NHWC or NDHWC" : " or NCDHW",
                    static_cast<int>(argument.tensor->format));
  }
}

int32_t check_formats(Arguments data, const aclTensor* input, Formats formats) {
  for (const Argument& argument : data) {
    if (const int32_t status = check_format(argument, formats)) return status;
    if (argument.tensor && has_channels_last(argument.tensor) != has_channels_last(input)) {
      return refuse(kInvalid, "%s: expected channels where aclFormat %d of input has them, got %d",
                    argument.name, static_cast<int>(input->format),
                    static_cast<int>(argument.tensor->format));
    }
  }
  return kSuccess;
}

}  // namespace

int32_t check_batch_norm(const aclTensor* input, const aclTensor* grad_out,
                         const aclTensor* grad_input, Formats formats,
                         Arguments per_channel) noexcept {
  const Arguments data = {{"gradOut", grad_out}, {"input", input}, {"gradInput", grad_input}};
  if (const int32_t status = check_dtypes(data)) return status;
  if (const int32_t status = check_dtypes(per_channel)) return status;
  if (const int32_t status = check_dtype({"gradOut", grad_out}, input->dtype, " as input")) {
    return status;
  }
  if (const int32_t status = check_formats(data, input, formats)) return status;
  if (const int32_t status = check_ranks(data, 2, 8)) return status;
  const Shape& shape = input->view.shape;
  const int64_t channels = shape[channel_axis(input)];
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
