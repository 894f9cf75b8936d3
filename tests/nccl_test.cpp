// The NCCL engine on one GPU: every operation, captured and not, synchronized BatchNorm over it,
// and what it says of ranks that do not come. Needs libnccl.so.2, by LD_LIBRARY_PATH if it must be.
#include "normgrad/nccl.hpp"

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "device_test.hpp"
#include "normgrad/sync_batch_norm.hpp"

namespace normgrad {
namespace {

using device_test::DeviceMemory;
using device_test::expect_ok;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Bytes = std::vector<unsigned char>;

constexpr Seconds kDeadline(30);

double seconds_since(Clock::time_point start) { return Seconds(Clock::now() - start).count(); }

Bytes pattern(size_t size, int seed = 1) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(seed + i * 31 + i / 256);
  return bytes;
}

void upload(const DeviceMemory& to, const Bytes& from) {
  expect_ok(cuda::copy(to.data(), from.data(), from.size()));
}
Bytes download(const DeviceMemory& from, size_t size) {
  Bytes bytes(size);
  expect_ok(cuda::copy(bytes.data(), from.data(), size));
  return bytes;
}

class Stream {
 public:
  Stream() { expect_ok(cuda::create_stream(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { expect_ok(cuda::destroy_stream(stream_)); }
  operator void*() const { return stream_; }  // NOLINT: as the functions want it

 private:
  void* stream_ = nullptr;
};

// What `queue` puts on the stream, as a graph that can be launched.
class Graph {
 public:
  Graph(void* stream, const std::function<Status()>& queue) {
    expect_ok(cuda::begin_capture(stream, cuda::CaptureMode::kThreadLocal));
    expect_ok(queue());
    expect_ok(cuda::end_capture(stream, graph_));
    expect_ok(cuda::instantiate(graph_, executable_));
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    expect_ok(cuda::destroy_executable(executable_));
    expect_ok(cuda::destroy_graph(graph_));
  }
  void launch(void* stream) const { expect_ok(cuda::launch(executable_, stream)); }

 private:
  void* graph_ = nullptr;
  void* executable_ = nullptr;
};

class Nccl : public device_test::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    NcclUniqueId id;
    const Status status = nccl_unique_id(id);
    if (status.code() == Code::kUnsupportedDevice) GTEST_SKIP() << status.message();
    expect_ok(status);
    expect_ok(nccl_communicator(1, id, 0, kDeadline, comm));
    ASSERT_TRUE(comm);
  }

  std::unique_ptr<Communicator> comm;
};

TEST_F(Nccl, KnowsItsPlace) {
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->device(), Device::kCuda);
  expect_ok(comm->wait(nullptr));
}

TEST_F(Nccl, WrongArguments) {
  NcclUniqueId id;
  std::unique_ptr<Communicator> none;
  expect_ok(nccl_unique_id(id));
  EXPECT_EQ(nccl_communicator(0, id, 0, kDeadline, none).code(), Code::kBadArgument);
  EXPECT_EQ(nccl_communicator(2, id, 2, kDeadline, none).code(), Code::kBadArgument);
  EXPECT_EQ(nccl_communicator(2, id, -1, kDeadline, none).code(), Code::kBadArgument);
  EXPECT_EQ(nccl_communicator(1, id, 0, Seconds(0), none).code(), Code::kBadArgument);
  EXPECT_FALSE(none);
  std::vector<std::unique_ptr<Communicator>> list;
  const int twice[] = {0, 0}, beyond[] = {cuda::device_count()};
  EXPECT_EQ(nccl_communicators({}, kDeadline, list).code(), Code::kBadArgument);
  EXPECT_EQ(nccl_communicators(twice, kDeadline, list).code(), Code::kBadArgument);
  EXPECT_EQ(nccl_communicators(beyond, kDeadline, list).code(), Code::kBadArgument);
  EXPECT_TRUE(list.empty());

  const DeviceMemory memory(64);
  void* const data = memory.data();
  const auto sum = Reduction::kSum;
  const int64_t negative = -1;
  EXPECT_EQ(comm->all_reduce(nullptr, data, 1, Element::kF32, sum, nullptr).code(),
            Code::kNullPointer);
  EXPECT_EQ(comm->all_reduce(data, data, -1, Element::kF32, sum, nullptr).code(),
            Code::kBadArgument);
  EXPECT_EQ(comm->reduce_scatter_v(data, data, nullptr, Element::kF32, sum, nullptr).code(),
            Code::kNullPointer);
  EXPECT_EQ(comm->reduce_scatter_v(data, data, &negative, Element::kF32, sum, nullptr).code(),
            Code::kBadArgument);
  EXPECT_EQ(comm->all_gather(data, nullptr, 1, nullptr).code(), Code::kNullPointer);
  EXPECT_EQ(comm->broadcast(data, data, 1, 1, nullptr).code(), Code::kBadArgument);
  EXPECT_EQ(comm->send(data, 1, -1, nullptr).code(), Code::kBadArgument);
  EXPECT_EQ(comm->recv(data, 1, 1, nullptr).code(), Code::kBadArgument);
  EXPECT_EQ(comm->group_end().code(), Code::kBadArgument);
  expect_ok(comm->all_reduce(nullptr, nullptr, 0, Element::kF32, sum, nullptr));
  expect_ok(comm->all_gather(data, data, 16, nullptr));  // none of that broke it
  expect_ok(comm->wait(nullptr));
}

// One rank: every operation moves `from` to `to`.
struct Operation {
  std::string name;
  std::function<Status(Communicator&, const void* from, void* to, size_t bytes, void* stream)> run;
};

std::vector<Operation> operations() {
  constexpr Element kElements[] = {Element::kF32, Element::kF16, Element::kBF16, Element::kF64,
                                   Element::kI32, Element::kI64, Element::kU32,  Element::kU64};
  constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kProduct, Reduction::kMax,
                                       Reduction::kMin, Reduction::kAverage};
  std::vector<Operation> all = {
      {"all_gather", [](Communicator& c, const void* from, void* to, size_t bytes,
                        void* stream) { return c.all_gather(from, to, bytes, stream); }},
      {"all_gather_v", [](Communicator& c, const void* from, void* to, size_t bytes,
                          void* stream) { return c.all_gather_v(from, to, &bytes, stream); }},
      {"broadcast", [](Communicator& c, const void* from, void* to, size_t bytes,
                       void* stream) { return c.broadcast(from, to, bytes, 0, stream); }},
      {"send and recv",
       [](Communicator& c, const void* from, void* to, size_t bytes, void* stream) {
         Status status = c.group_start();
         if (status.ok()) status = c.send(from, bytes, 0, stream);
         if (status.ok()) status = c.recv(to, bytes, 0, stream);
         const Status ended = c.group_end();
         return status.ok() ? ended : status;
       }}};
  for (const Element element : kElements) {
    for (const Reduction reduction : kReductions) {
      const std::string suffix = std::string(" ") + name_of(element) + " " + name_of(reduction);
      const auto count = [=](size_t bytes) {
        return static_cast<int64_t>(bytes / size_of(element));
      };
      all.push_back({"all_reduce" + suffix,
                     [=](Communicator& c, const void* from, void* to, size_t bytes, void* stream) {
                       return c.all_reduce(from, to, count(bytes), element, reduction, stream);
                     }});
      all.push_back({"reduce_scatter" + suffix,
                     [=](Communicator& c, const void* from, void* to, size_t bytes, void* stream) {
                       return c.reduce_scatter(from, to, count(bytes), element, reduction, stream);
                     }});
      all.push_back({"reduce_scatter_v" + suffix,
                     [=](Communicator& c, const void* from, void* to, size_t bytes, void* stream) {
                       const int64_t counts[] = {count(bytes)};
                       return c.reduce_scatter_v(from, to, counts, element, reduction, stream);
                     }});
    }
  }
  return all;
}

constexpr size_t kSize = 8000;

TEST_F(Nccl, EveryOperation) {
  const Stream stream;
  const DeviceMemory from(kSize), to(kSize);
  int seed = 0;
  // Numbers as any type may have them: no NaN, whose bits need not survive.
  for (const Operation& operation : operations()) {
    Bytes data = pattern(kSize, ++seed);
    for (size_t i = 1; i < kSize; i += 2) data[i] &= 0x3F;
    upload(from, data);
    upload(to, Bytes(kSize, 0xEE));
    const Status status = operation.run(*comm, from.data(), to.data(), kSize, stream);
    EXPECT_TRUE(status.ok()) << operation.name << ": " << status.message();
    expect_ok(comm->wait(stream));
    EXPECT_EQ(download(to, kSize), data) << operation.name;
  }
}

TEST_F(Nccl, EveryOperationCaptured) {
  const Stream stream;
  const DeviceMemory from(kSize), to(kSize);
  int seed = 100;
  for (const Operation& operation : operations()) {
    expect_ok(operation.run(*comm, from.data(), to.data(), kSize, stream));  // connects
    expect_ok(comm->wait(stream));
    upload(to, Bytes(kSize, 0xEE));
    const Graph graph(stream,
                      [&] { return operation.run(*comm, from.data(), to.data(), kSize, stream); });
    EXPECT_EQ(download(to, kSize), Bytes(kSize, 0xEE)) << operation.name << " ran when captured";
    for (int launch = 0; launch < 2; ++launch) {
      Bytes data = pattern(kSize, ++seed);
      for (size_t i = 1; i < kSize; i += 2) data[i] &= 0x3F;
      upload(from, data);
      graph.launch(stream);
      expect_ok(comm->wait(stream));
      EXPECT_EQ(download(to, kSize), data) << operation.name << ", launch " << launch;
    }
  }
}

TEST_F(Nccl, ListOfDevices) {
  std::vector<int> devices(static_cast<size_t>(cuda::device_count()));
  std::iota(devices.begin(), devices.end(), 0);
  std::vector<std::unique_ptr<Communicator>> all;
  expect_ok(nccl_communicators(devices, kDeadline, all));
  ASSERT_EQ(all.size(), devices.size());
  // One thread drives them all, in one group.
  std::vector<DeviceMemory> memory;
  for (const int device : devices) {
    expect_ok(cuda::set_device(device));
    memory.emplace_back(4);
    const float value = static_cast<float>(device + 1);
    expect_ok(cuda::copy(memory.back().data(), &value, 4));
  }
  expect_ok(cuda::set_device(0));
  expect_ok(all[0]->group_start());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]->rank(), static_cast<int>(i));
    EXPECT_EQ(all[i]->size(), static_cast<int>(all.size()));
    void* const data = memory[i].data();
    expect_ok(all[i]->all_reduce(data, data, 1, Element::kF32, Reduction::kSum, nullptr));
  }
  expect_ok(all[0]->group_end());
  const float expected = static_cast<float>(all.size() * (all.size() + 1) / 2);
  for (size_t i = 0; i < all.size(); ++i) {
    expect_ok(all[i]->wait(nullptr));
    float value = 0;
    expect_ok(cuda::copy(&value, memory[i].data(), 4));
    EXPECT_EQ(value, expected);
  }
}

TEST_F(Nccl, ARankThatDoesNotCome) {
  NcclUniqueId id;
  expect_ok(nccl_unique_id(id));
  std::unique_ptr<Communicator> pair;
  const auto start = Clock::now();
  const Status status = nccl_communicator(2, id, 0, Seconds(2), pair);
  EXPECT_LT(seconds_since(start), 4);
  EXPECT_EQ(status.code(), Code::kCommunication) << status.message();
  EXPECT_NE(status.message().find("2 s"), std::string::npos) << status.message();
  EXPECT_FALSE(pair);
  expect_ok(comm->wait(nullptr));  // others are not concerned
}

// 900 fills of a quarter of the memory take 6 s or more; more fills would not fit the queue of a
// stream.
TEST_F(Nccl, AStreamThatMissesTheDeadline) {
  NcclUniqueId id;
  expect_ok(nccl_unique_id(id));
  std::unique_ptr<Communicator> hasty;
  expect_ok(nccl_communicator(1, id, 0, Seconds(2), hasty));
  ASSERT_TRUE(hasty);
  const Stream stream;
  cuda::DeviceInfo info;
  expect_ok(cuda::describe(0, info));
  const size_t much = info.free_bytes / 4;
  const DeviceMemory memory(much);
  for (int i = 0; i < 900; ++i) expect_ok(cuda::fill(memory.data(), i, much, stream));
  const auto start = Clock::now();
  const Status status = hasty->wait(stream);
  EXPECT_LT(seconds_since(start), 4);
  EXPECT_EQ(status.code(), Code::kCommunication);
  EXPECT_NE(status.message().find("2 s"), std::string::npos) << status.message();
  const Status later = hasty->all_gather(memory.data(), memory.data(), 8, stream);
  EXPECT_EQ(later.code(), Code::kCommunication);
  EXPECT_NE(later.message().find("broken"), std::string::npos) << later.message();
  expect_ok(cuda::synchronize_stream(stream));
}

// Synchronized BatchNorm of one rank, forward and backward, beside the layer itself.
class SyncOnGpu : public Nccl {
 protected:
  static constexpr int64_t kN = 6, kC = 40, kL = 51, kAll = kN * kC * kL;
  static constexpr float kMomentum = 0.25f;

  // Everything that the two passes read and write, one vector of floats after another.
  enum Place { kX, kDy, kGamma, kBeta, kY, kDx, kMean, kRstd, kRunMean, kRunVar, kDgamma, kDbeta };
  static int64_t offset(int place) {
    constexpr int64_t kSizes[] = {kAll, kAll, kC, kC, kAll, kAll, kC, kC, kC, kC, kC, kC};
    return std::accumulate(kSizes, kSizes + place, int64_t{0});
  }
  static constexpr int kPlaces = 12;

  static std::vector<float> inputs(int seed) {
    std::vector<float> values(static_cast<size_t>(offset(kPlaces)), -77);
    uint64_t state = static_cast<uint64_t>(seed);
    const auto random = [&] {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<float>(state >> 40) / static_cast<float>(1 << 24) - 0.5f;
    };
    for (int64_t i = offset(kX); i < offset(kY); ++i) values[static_cast<size_t>(i)] = 3 * random();
    for (int64_t i = offset(kRunMean); i < offset(kDgamma); ++i) {
      values[static_cast<size_t>(i)] = 1 + random();
    }
    return values;
  }

  static Buffers buffers(const DeviceMemory& memory) {
    const auto at = [&](int place) {
      return static_cast<void*>(memory.data() + 4 * offset(place));
    };
    return {.x = at(kX),
            .dy = at(kDy),
            .gamma = at(kGamma),
            .mean = at(kMean),
            .spread = at(kRstd),
            .dx = at(kDx),
            .dgamma = at(kDgamma),
            .dbeta = at(kDbeta),
            .beta = at(kBeta),
            .y = at(kY),
            .saved_mean = at(kMean),
            .saved_spread = at(kRstd),
            .running_mean = at(kRunMean),
            .running_variance = at(kRunVar)};
  }

  static void upload_floats(const DeviceMemory& to, const std::vector<float>& from) {
    expect_ok(cuda::copy(to.data(), from.data(), 4 * from.size()));
  }
  static std::vector<float> download_floats(const DeviceMemory& from) {
    std::vector<float> values(static_cast<size_t>(offset(kPlaces)));
    expect_ok(cuda::copy(values.data(), from.data(), 4 * values.size()));
    return values;
  }

  // Element by element within a few roundings of what the layer itself makes.
  static void expect_near(const std::vector<float>& got, const std::vector<float>& expected) {
    int wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const float bound = 1e-5f * (1 + std::fabs(expected[i]));
      if (std::fabs(got[i] - expected[i]) <= bound) continue;
      if (++wrong < 4) ADD_FAILURE() << i << ": expected " << expected[i] << ", got " << got[i];
    }
    EXPECT_EQ(wrong, 0);
  }

  const Tensor data_{DType::kF32, {kN, kC, kL}}, vector_{DType::kF32, {kC}};
  const BatchNorm forward_{.x = data_,
                           .gamma = vector_,
                           .beta = vector_,
                           .running_mean = vector_,
                           .running_variance = vector_,
                           .momentum = kMomentum,
                           .y = data_,
                           .mean = vector_,
                           .spread = vector_,
                           .statistics = Statistics::kMeanRstd};
  const BatchNormBackward backward_{.x = data_,
                                    .dy = data_,
                                    .gamma = vector_,
                                    .statistics = Statistics::kMeanRstd,
                                    .mean = vector_,
                                    .spread = vector_,
                                    .dx = data_,
                                    .dgamma = vector_,
                                    .dbeta = vector_};
};

TEST_F(SyncOnGpu, EqualsTheLayerAlsoCaptured) {
  const Stream stream;
  const DeviceMemory alone(4 * static_cast<size_t>(offset(kPlaces)));
  const DeviceMemory together(4 * static_cast<size_t>(offset(kPlaces)));
  const Plan forward(forward_, Device::kCuda), backward(backward_, Device::kCuda);
  const SyncBatchNorm layer(*comm, forward_);
  const SyncPlan sync_forward = layer.plan(forward_), sync_backward = layer.plan(backward_);
  const size_t size = std::max({forward.workspace_size(), backward.workspace_size(),
                                sync_forward.workspace_size(), sync_backward.workspace_size()});
  const DeviceMemory workspace(size), sync_workspace(size), back_workspace(size);

  const auto expected = [&](int seed) {
    upload_floats(alone, inputs(seed));
    forward.run(buffers(alone), workspace.data(), size, stream);
    backward.run(buffers(alone), workspace.data(), size, stream);
    expect_ok(cuda::synchronize_stream(stream));
    return download_floats(alone);
  };
  const auto queue = [&] {
    Status status = sync_forward.execute(buffers(together), sync_workspace.data(), size, stream);
    if (!status.ok()) return status;
    return sync_backward.execute(buffers(together), back_workspace.data(), size, stream);
  };
  const auto expect_done = [&] {
    expect_ok(sync_forward.wait(sync_workspace.data(), stream));
    expect_ok(sync_backward.wait(back_workspace.data(), stream));
  };

  upload_floats(together, inputs(1));
  expect_ok(queue());
  expect_done();
  const std::vector<float> queued = download_floats(together);
  expect_near(queued, expected(1));

  const Graph graph(stream, queue);
  for (const int seed : {1, 2, 3}) {
    upload_floats(together, inputs(seed));
    graph.launch(stream);
    expect_done();
    const std::vector<float> replayed = download_floats(together);
    expect_near(replayed, expected(seed));
    if (seed == 1) {
      EXPECT_EQ(0, std::memcmp(replayed.data(), queued.data(), 4 * queued.size()));
    }
  }
}

}  // namespace
}  // namespace normgrad
