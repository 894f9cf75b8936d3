// The gradient of BatchNorm through the native C++ API: a plan, made once, and its execution.
#include <cstddef>
#include <cstdio>
#include <normgrad/normgrad.hpp>
#include <vector>

namespace {

bool show(const char* name, const std::vector<float>& got, const std::vector<float>& expected) {
  std::printf("%-6s", name);
  for (const float value : got) std::printf(" %5.1f", value);
  std::printf("\n");
  return got == expected;
}

}  // namespace

int main() try {
  using normgrad::DType;
  // N = 2 samples, C = 2 channels, L = 2 positions.
  const std::vector<float> x = {1, 3, 0, 4, 1, 3, 4, 0};
  const std::vector<float> dy = {1, 2, 2, 0, 3, 6, 4, 2};
  const std::vector<float> gamma = {2, 1}, mean = {2, 2}, variance = {1, 4};
  std::vector<float> dx(8), dgamma(2), dbeta(2);

  const normgrad::Tensor samples = {DType::kF32, {2, 2, 2}};
  const normgrad::Tensor channels = {DType::kF32, {2}};
  normgrad::BatchNormBackward call;
  call.x = call.dy = samples;
  call.gamma = channels;
  call.statistics = normgrad::Statistics::kMeanVariance;
  call.mean = call.spread = channels;
  call.dx = samples;
  call.dgamma = call.dbeta = channels;

  const normgrad::Plan plan(call);
  std::vector<std::byte> workspace(plan.workspace_size());
  normgrad::Buffers buffers;
  buffers.x = x.data();
  buffers.dy = dy.data();
  buffers.gamma = gamma.data();
  buffers.mean = mean.data();
  buffers.spread = variance.data();
  buffers.dx = dx.data();
  buffers.dgamma = dgamma.data();
  buffers.dbeta = dbeta.data();
  plan.run(buffers, workspace.data(), workspace.size());

  std::printf("kernel %s\n", plan.kernel().c_str());
  const bool right = show("dx", dx, {-2, -4, 0, -1, 2, 4, 1, 0}) & show("dgamma", dgamma, {4, 0}) &
                     show("dbeta", dbeta, {12, 8});
  if (!right) std::fprintf(stderr, "these are not the gradients\n");
  return right ? 0 : 1;
} catch (const normgrad::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
