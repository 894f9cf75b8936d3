// Session: graphs by number.
#include <atomic>
#include <mutex>

#include "error.hpp"
#include "ge/ge_api.h"
#include "kinds/device.hpp"
#include "runner/async_queue.hpp"
#include "runner/engine.hpp"
#include "runner/loaded_graph.hpp"

namespace ge {

using normgrad::graph_mode::AsyncQueue;
using normgrad::graph_mode::check_options;
using normgrad::graph_mode::current_epoch;
using normgrad::graph_mode::current_gpu;
using normgrad::graph_mode::device;
using normgrad::graph_mode::gpu_of;
using normgrad::graph_mode::guard;
using normgrad::graph_mode::LoadedGraph;
using normgrad::graph_mode::refuse;
using normgrad::graph_mode::take_snapshot;
using normgrad::graph_mode::to_options;

using LoadedGraphPtr = std::shared_ptr<LoadedGraph>;

struct SessionImpl {
  uint64_t id = 0;
  uint64_t epoch = 0;   // of the engine when the session was made
  std::string problem;  // why the session cannot be used
  int gpu = -1;         // of the options
  std::mutex mutex;     // of graphs
  std::map<uint32_t, LoadedGraphPtr> graphs;
  AsyncQueue queue;  // last, so that its jobs are done before anything else goes

  void start(const normgrad::graph_mode::Options& options) {
    static std::atomic<uint64_t> count{0};
    const uint32_t status = guard([&] {
      epoch = current_epoch();
      if (epoch == 0) refuse("E10062: Session: the engine is not initialized; call GEInitialize");
      check_options("Session", options);
      gpu = gpu_of(options);
      id = ++count;
      return SUCCESS;
    });
    if (status != SUCCESS) problem = "this session was not made: see the message of its making";
  }

  void check(const char* function) const {
    if (epoch == 0 || epoch != current_epoch()) {
      refuse(std::string("E10062: ") + function +
             ": the engine is not initialized, or was not when the session was made; call "
             "GEInitialize, then make the session");
    }
    if (!problem.empty()) refuse(std::string(function) + ": " + problem);
  }

  LoadedGraphPtr find(const char* function, uint32_t graph_id, bool remove = false) {
    check(function);
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = graphs.find(graph_id);
    if (found == graphs.end()) {
      refuse(std::string(function) + ": the session has no graph " + std::to_string(graph_id));
    }
    const LoadedGraphPtr graph = found->second;
    if (remove) graphs.erase(found);
    return graph;
  }
  LoadedGraphPtr take(const char* function, uint32_t graph_id) {
    return find(function, graph_id, /*remove=*/true);
  }

  void add(uint32_t graph_id, const Graph& graph, const normgrad::graph_mode::Options& options) {
    check("AddGraph");
    check_options("AddGraph", options);
    if (!graph.IsValid()) {
      refuse("AddGraph: graph " + std::to_string(graph_id) +
             " has no inputs; give it some with SetInputs");
    }
    const bool on_gpu = device() == normgrad::Device::kCuda;
    const int place = !on_gpu ? -1 : gpu >= 0 ? gpu : current_gpu();
    auto loaded = std::make_shared<LoadedGraph>(take_snapshot(graph), place);
    const std::lock_guard<std::mutex> lock(mutex);
    if (!graphs.emplace(graph_id, std::move(loaded)).second) {
      refuse("AddGraph: the session has a graph " + std::to_string(graph_id) + " already");
    }
  }
};

Session::Session(const std::map<AscendString, AscendString>& options) : impl_(new SessionImpl) {
  impl_->start(options);
}

Session::Session(const std::map<std::string, std::string>& options)
    : Session(to_options(options)) {}

Session::~Session() = default;

uint64_t Session::GetSessionId() const { return impl_->id; }

Status Session::AddGraph(uint32_t id, const Graph& graph) {
  return AddGraph(id, graph, std::map<AscendString, AscendString>());
}

Status Session::AddGraph(uint32_t id, const Graph& graph,
                         const std::map<AscendString, AscendString>& options) {
  return guard([&] {
    impl_->add(id, graph, options);
    return SUCCESS;
  });
}

Status Session::AddGraph(uint32_t id, const Graph& graph,
                         const std::map<std::string, std::string>& options) {
  return guard([&] { return AddGraph(id, graph, to_options(options)); });
}

Status Session::AddGraphWithCopy(uint32_t id, const Graph& graph) { return AddGraph(id, graph); }

Status Session::AddGraphWithCopy(uint32_t id, const Graph& graph,
                                 const std::map<AscendString, AscendString>& options) {
  return AddGraph(id, graph, options);
}

Status Session::RemoveGraph(uint32_t id) {
  return guard([&] {
    const LoadedGraphPtr graph = impl_->take("RemoveGraph", id);
    // A callback would wait for runs that come after itself; they keep the graph alive.
    if (!impl_->queue.is_this_thread()) graph->wait_for_pending();
    return SUCCESS;
  });
}

Status Session::CompileGraph(uint32_t id) {
  return guard([&] {
    impl_->find("CompileGraph", id)->compile();
    return SUCCESS;
  });
}

Status Session::BuildGraph(uint32_t id, const std::vector<Tensor>& inputs) {
  return guard([&] {
    impl_->find("BuildGraph", id)->compile_for(inputs);
    return SUCCESS;
  });
}

bool Session::IsGraphNeedRebuild(uint32_t id) {
  bool compiled = false;
  (void)guard([&] {
    compiled = impl_->find("IsGraphNeedRebuild", id)->is_compiled();
    return SUCCESS;
  });
  return !compiled;
}

Status Session::RunGraph(uint32_t id, const std::vector<Tensor>& inputs,
                         std::vector<Tensor>& outputs) {
  return guard([&] {
    impl_->find("RunGraph", id)->run(inputs, outputs, /*in_place=*/false);
    return SUCCESS;
  });
}

Status Session::RunGraphAsync(uint32_t id, const std::vector<Tensor>& inputs,
                              RunAsyncCallback callback) {
  return guard([&] {
    const LoadedGraphPtr graph = impl_->find("RunGraphAsync", id);
    if (!callback) refuse("RunGraphAsync: the callback is empty");
    const auto job = [graph, inputs, callback] {
      std::vector<Tensor> outputs;
      const Status status = guard([&] {
        graph->run(inputs, outputs, /*in_place=*/false);
        return SUCCESS;
      });
      // Nobody could catch what a callback throws.
      (void)guard([&] {
        callback(status, outputs);
        return SUCCESS;
      });
      graph->end_pending();
    };
    graph->begin_pending();
    const Status status = guard([&] {
      impl_->queue.push(job);
      return SUCCESS;
    });
    if (status != SUCCESS) graph->end_pending();
    return status;
  });
}

Status Session::RunGraphWithStreamAsync(uint32_t id, void*, const std::vector<Tensor>& inputs,
                                        std::vector<Tensor>& outputs) {
  return guard([&] {
    impl_->find("RunGraphWithStreamAsync", id)->run(inputs, outputs, /*in_place=*/true);
    return SUCCESS;
  });
}

}  // namespace ge
