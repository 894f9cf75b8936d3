// The gradient of LayerNorm through aclnn's two stages: mean and rstd are what the forward pass
// left.
#include <acl/acl.h>
#include <aclnnop/aclnn_layer_norm_backward.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

static void check(int status, const char *what) {
  if (status == ACL_SUCCESS) return;
  const char *message = aclGetRecentErrMsg();
  std::fprintf(stderr, "%s answered %d: %s\n", what, status, message ? message : "");
  std::exit(1);
}

// A float tensor in device memory, contiguous.
struct DeviceTensor {
  DeviceTensor(const std::vector<int64_t> &dims, const std::vector<float> &values)
      : count(values.size()) {
    const size_t bytes = count * sizeof(float);
    check(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    check(aclrtMemcpy(memory, bytes, values.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE),
          "aclrtMemcpy");
    tensor = aclCreateTensor(dims.data(), dims.size(), ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND,
                             dims.data(), dims.size(), memory);
    check(tensor ? ACL_SUCCESS : ACL_ERROR_FAILURE, "aclCreateTensor");
  }
  ~DeviceTensor() {
    check(aclDestroyTensor(tensor), "aclDestroyTensor");
    check(aclrtFree(memory), "aclrtFree");
  }
  DeviceTensor(const DeviceTensor &) = delete;
  DeviceTensor &operator=(const DeviceTensor &) = delete;

  std::vector<float> values() const {
    std::vector<float> host(count);
    const size_t bytes = count * sizeof(float);
    check(aclrtMemcpy(host.data(), bytes, memory, bytes, ACL_MEMCPY_DEVICE_TO_HOST), "aclrtMemcpy");
    return host;
  }

  size_t count;
  void *memory = nullptr;
  aclTensor *tensor = nullptr;
};

static void show(const char *name, const DeviceTensor &got, const std::vector<float> &expected) {
  const std::vector<float> values = got.values();
  std::printf("%-10s", name);
  for (float value : values) std::printf(" %g", value);
  std::printf("\n");
  if (values == expected) return;
  std::fprintf(stderr, "%s is wrong\n", name);
  std::exit(1);
}

static void layer_norm(aclrtStream stream) {
  // Two rows of two; the normalized shape is {2}.
  const DeviceTensor grad_out({2, 2}, {2, 3, 4, 5}), input({2, 2}, {2, 3, 4, 5});
  const DeviceTensor mean({2, 1}, {2, 3}), rstd({2, 1}, {4, 5});
  const DeviceTensor weight({2}, {1, 1}), bias({2}, {0, 0});
  const DeviceTensor grad_input({2, 2}, {0, 0, 0, 0}), grad_weight({2}, {0, 0});
  const DeviceTensor grad_bias({2}, {0, 0});
  const int64_t dims[] = {2};
  const bool wanted[] = {true, true, true};
  aclIntArray *const normalized_shape = aclCreateIntArray(dims, 1);
  aclBoolArray *const mask = aclCreateBoolArray(wanted, 3);

  // The first stage checks the call and says how much workspace it needs.
  uint64_t workspace_size = 0;
  aclOpExecutor *executor = nullptr;
  check(aclnnLayerNormBackwardGetWorkspaceSize(grad_out.tensor, input.tensor, normalized_shape,
                                               mean.tensor, rstd.tensor, weight.tensor, bias.tensor,
                                               mask, grad_input.tensor, grad_weight.tensor,
                                               grad_bias.tensor, &workspace_size, &executor),
        "aclnnLayerNormBackwardGetWorkspaceSize");
  void *workspace = nullptr;
  if (workspace_size > 0) {
    check(aclrtMalloc(&workspace, workspace_size, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
  }

  // The second computes, and ends the executor.
  check(aclnnLayerNormBackward(workspace, workspace_size, executor, stream),
        "aclnnLayerNormBackward");
  check(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");

  show("gradInput", grad_input, {-2, -94, -877.5f, -1747.5f});
  show("gradWeight", grad_weight, {20, 62});
  show("gradBias", grad_bias, {6, 8});

  if (workspace) check(aclrtFree(workspace), "aclrtFree");
  check(aclDestroyIntArray(normalized_shape), "aclDestroyIntArray");
  check(aclDestroyBoolArray(mask), "aclDestroyBoolArray");
}

int main() {
  aclrtStream stream = nullptr;
  check(aclInit(nullptr), "aclInit");
  check(aclrtSetDevice(0), "aclrtSetDevice");
  check(aclrtCreateStream(&stream), "aclrtCreateStream");
  layer_norm(stream);
  check(aclrtDestroyStream(stream), "aclrtDestroyStream");
  check(aclrtResetDevice(0), "aclrtResetDevice");
  check(aclFinalize(), "aclFinalize");
  return 0;
}
