// Compiling a graph for the shapes at hand, once for each, and running it.
#include "runner/loaded_graph.hpp"

#include <algorithm>
#include <functional>
#include <new>

#include "kinds/check.hpp"
#include "runner/infer.hpp"

namespace normgrad::graph_mode {
namespace {

using ::ge::Tensor;
using ::ge::TensorDesc;

// Beyond this many sets of shapes the programs are made anew, or a server that sees ever new shapes
// would keep them all.
constexpr size_t kMaxPrograms = 256;
constexpr std::align_val_t kAlignment{64};

void free_memory(uint8_t* memory) { ::operator delete(memory, kAlignment); }

Memory allocate(size_t bytes) {
  return {static_cast<uint8_t*>(::operator new(bytes, kAlignment)), free_memory};
}

void append(const TensorDesc& desc, std::vector<int64_t>& key) {
  const ::ge::Shape shape = desc.GetShape();
  key.push_back(desc.GetDataType());
  key.push_back(desc.GetFormat());
  key.push_back(static_cast<int64_t>(shape.GetDimNum()));
  for (size_t axis = 0; axis < shape.GetDimNum(); ++axis) key.push_back(shape.GetDim(axis));
}

bool is_aligned(const Tensor& tensor) {
  const int size = ::ge::GetSizeByDataType(tensor.GetTensorDesc().GetDataType());
  return reinterpret_cast<uintptr_t>(tensor.GetData()) % std::clamp(size, 1, 8) == 0;
}

bool overlap(const Tensor& a, const Tensor& b) {
  const std::less<const uint8_t*> before;
  return a.GetSize() > 0 && b.GetSize() > 0 && before(a.GetData(), b.GetData() + b.GetSize()) &&
         before(b.GetData(), a.GetData() + a.GetSize());
}

}  // namespace

// The GPU's memory goes with the GPU selected; where that cannot be, the process is about to end.
LoadedGraph::~LoadedGraph() {
  if (gpu_ < 0) return;
  try {
    const SelectGpu selected(gpu_);
    arena_.reset();
  } catch (const std::exception&) {  // nobody is left to be told
  }
}

void LoadedGraph::check_graph() {
  if (order_) return;
  std::vector<int> order = execution_order(graph_);
  (void)infer(graph_, order, nullptr);
  order_ = std::move(order);
}

void LoadedGraph::compile() {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_graph();
  Descs feeds;
  for (const int node : graph_.feeds) {
    const auto& stated = graph_.nodes[node].outputs[0].stated;
    // Of rank 0 is also what a program leaves that states a type only.
    if (!stated || stated->GetShape().GetDimNum() == 0 || !is_known(stated->GetShape()) ||
        stated->GetDataType() == ::ge::DT_UNDEFINED) {
      return;
    }
    feeds.push_back(*stated);
  }
  key_.clear();
  for (const TensorDesc& feed : feeds) append(feed, key_);
  if (!programs_.count(key_)) remember(feeds);
}

void LoadedGraph::compile_for(const Tensors& inputs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  (void)program_for(inputs);
}

bool LoadedGraph::is_compiled() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return order_.has_value();
}

void LoadedGraph::check_inputs(const Tensors& inputs) {
  if (inputs.size() != graph_.feeds.size()) {
    refuse("graph '" + graph_.name + "': expected " + std::to_string(graph_.feeds.size()) +
           " input tensors, one for each Data, got " + std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorDesc desc = inputs[i].GetTensorDesc();
    const auto fail = [&](const std::string& reason) {
      refuse("node '" + graph_.nodes[graph_.feeds[i]].name + "' (Data): input tensor " +
             std::to_string(i) + ": " + reason);
    };
    const ::ge::Shape shape = desc.GetShape();
    if (!is_known(shape)) fail("its shape is not known, " + text(shape));
    const int64_t bytes = count_bytes(desc);
    if (bytes < 0 || inputs[i].GetSize() != static_cast<size_t>(bytes)) {
      fail("its shape " + text(shape) + " of " + text(desc.GetDataType()) + " takes " +
           (bytes < 0 ? "too many" : std::to_string(bytes)) + " bytes, its data has " +
           std::to_string(inputs[i].GetSize()));
    }
    if (bytes > 0 && !inputs[i].GetData()) fail("its data is null");
    if (!is_aligned(inputs[i])) fail("its data is not aligned to its elements");
  }
}

LoadedGraph::Compiled& LoadedGraph::program_for(const Tensors& inputs) {
  check_graph();
  check_inputs(inputs);
  key_.clear();
  for (const Tensor& input : inputs) append(input.GetTensorDesc(), key_);
  const auto found = programs_.find(key_);
  if (found != programs_.end()) return found->second;
  Descs feeds;
  for (const Tensor& input : inputs) feeds.push_back(input.GetTensorDesc());
  return remember(feeds);
}

LoadedGraph::Compiled& LoadedGraph::remember(const Descs& feeds) {
  const SelectGpu selected(gpu_);
  Compiled compiled = {graph_mode::compile(graph_, *order_, feeds), {}};
  if (gpu_ >= 0) compiled.layout = lay_out(compiled.program, graph_, feeds);
  const size_t bytes = gpu_ >= 0 ? compiled.layout.size : compiled.program.arena_size;
  if (bytes > arena_size_) {
    arena_ = gpu_ >= 0 ? allocate_on_gpu(bytes) : allocate(bytes);
    arena_size_ = bytes;
  }
  feed_pointers_.resize(graph_.feeds.size());
  output_pointers_.resize(graph_.outputs.size());
  if (programs_.size() >= kMaxPrograms) programs_.clear();
  return programs_.emplace(key_, std::move(compiled)).first->second;
}

void LoadedGraph::refuse_output(size_t i, const std::string& reason) const {
  refuse("graph '" + graph_.name + "': output tensor " + std::to_string(i) + reason);
}

Tensor LoadedGraph::output_tensor(const Program& program, size_t i, const Tensors& given) const {
  const size_t bytes = program.output_bytes[i];
  if (i < given.size() && given[i].GetData()) {
    if (given[i].GetSize() != bytes) {
      refuse_output(i, ": expected " + std::to_string(bytes) + " bytes, got " +
                           std::to_string(given[i].GetSize()));
    }
    const int size = std::clamp(::ge::GetSizeByDataType(program.outputs[i].GetDataType()), 1, 8);
    if (reinterpret_cast<uintptr_t>(given[i].GetData()) % size != 0) {
      refuse_output(i, ": its memory is not aligned to its elements");
    }
    return given[i];
  }
  Tensor tensor(program.outputs[i]);
  auto memory = allocate(bytes);
  if (tensor.SetData(memory.get(), bytes, free_memory) != ::ge::GRAPH_SUCCESS) {
    (void)memory.release();  // it was freed
    throw std::bad_alloc();
  }
  (void)memory.release();
  return tensor;
}

void LoadedGraph::check_apart(const Tensors& inputs, const Tensors& outputs) const {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t j = 0; j < inputs.size(); ++j) {
      if (overlap(outputs[i], inputs[j])) {
        refuse_output(i, " overlaps input tensor " + std::to_string(j));
      }
    }
    for (size_t j = 0; j < i; ++j) {
      if (overlap(outputs[i], outputs[j])) {
        refuse_output(i, " overlaps output tensor " + std::to_string(j));
      }
    }
  }
}

void LoadedGraph::run(const Tensors& inputs, Tensors& outputs, bool in_place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Compiled& compiled = program_for(inputs);
  const Program& program = compiled.program;
  if (in_place && !outputs.empty() && outputs.size() != graph_.outputs.size()) {
    refuse("graph '" + graph_.name + "': expected " + std::to_string(graph_.outputs.size()) +
           " output tensors or none, got " + std::to_string(outputs.size()));
  }
  const Tensors none;
  Tensors made;
  made.reserve(graph_.outputs.size());
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    made.push_back(output_tensor(program, i, in_place ? outputs : none));
    output_pointers_[i] = made[i].GetData();
  }
  if (in_place) check_apart(inputs, made);
  for (size_t i = 0; i < inputs.size(); ++i) feed_pointers_[i] = inputs[i].GetData();
  if (gpu_ >= 0) {
    const SelectGpu selected(gpu_);
    run_on_gpu(program, compiled.layout, graph_, feed_pointers_, output_pointers_, arena_.get());
  } else {
    graph_mode::run(program, graph_, feed_pointers_, output_pointers_, arena_.get());
  }
  for (size_t i = 0; in_place && i < made.size(); ++i) {
    (void)made[i].SetTensorDesc(program.outputs[i]);
  }
  outputs = std::move(made);
}

void LoadedGraph::begin_pending() {
  const std::lock_guard<std::mutex> lock(pending_mutex_);
  ++pending_;
}

void LoadedGraph::end_pending() noexcept {
  const std::lock_guard<std::mutex> lock(pending_mutex_);
  if (--pending_ == 0) none_pending_.notify_all();
}

void LoadedGraph::wait_for_pending() {
  std::unique_lock<std::mutex> lock(pending_mutex_);
  none_pending_.wait(lock, [&] { return pending_ == 0; });
}

}  // namespace normgrad::graph_mode
