// The engine: it is initialized, sessions compile and run graphs, it is finalized.
#ifndef NORMGRAD_GE_GE_API_H_
#define NORMGRAD_GE_GE_API_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ge/ge_api_error_codes.h"
#include "ge/ge_api_types.h"
#include "graph/ascend_string.h"
#include "graph/graph.h"
#include "graph/tensor.h"

namespace ge {

NORMGRAD_GE_EXPORT Status GEInitialize(const std::map<AscendString, AscendString>& options);
NORMGRAD_GE_EXPORT Status GEInitialize(const std::map<std::string, std::string>& options);
// Sessions made before are of no use afterwards.
NORMGRAD_GE_EXPORT Status GEFinalize();

// The sentence behind the last failure of this thread, and its warnings, one per line. Reading
// empties them.
NORMGRAD_GE_EXPORT AscendString GEGetErrorMsgV2();
NORMGRAD_GE_EXPORT AscendString GEGetWarningMsgV2();
NORMGRAD_GE_EXPORT std::string GEGetErrorMsg();
NORMGRAD_GE_EXPORT std::string GEGetWarningMsg();

struct SessionImpl;

// May be used from several threads; runs of one graph follow each other.
class NORMGRAD_GE_EXPORT Session {
 public:
  explicit Session(const std::map<AscendString, AscendString>& options);
  explicit Session(const std::map<std::string, std::string>& options);
  ~Session();  // waits for asynchronous runs
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The graph is copied: what becomes of it and its operators afterwards has no effect here.
  Status AddGraph(uint32_t id, const Graph& graph);
  Status AddGraph(uint32_t id, const Graph& graph,
                  const std::map<AscendString, AscendString>& options);
  Status AddGraph(uint32_t id, const Graph& graph,
                  const std::map<std::string, std::string>& options);
  Status AddGraphWithCopy(uint32_t id, const Graph& graph);
  Status AddGraphWithCopy(uint32_t id, const Graph& graph,
                          const std::map<AscendString, AscendString>& options);
  Status RemoveGraph(uint32_t id);  // waits for asynchronous runs of the graph

  // Checks and compiles ahead of the first run: for the shapes that its Data state, as far as these
  // are known, or for those of the given inputs.
  Status CompileGraph(uint32_t id);
  Status BuildGraph(uint32_t id, const std::vector<Tensor>& inputs);
  bool IsGraphNeedRebuild(uint32_t id);

  // Makes new tensors for the outputs. On failure `outputs` is unchanged.
  Status RunGraph(uint32_t id, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs);
  // The callback comes from a thread of the session; it alone tells how the run ended.
  Status RunGraphAsync(uint32_t id, const std::vector<Tensor>& inputs, RunAsyncCallback callback);
  // Writes to the memory of `outputs`, or makes new tensors if there are none. It is complete on
  // return: there is no device queue behind the stream.
  Status RunGraphWithStreamAsync(uint32_t id, void* stream, const std::vector<Tensor>& inputs,
                                 std::vector<Tensor>& outputs);

  uint64_t GetSessionId() const;

 private:
  std::unique_ptr<SessionImpl> impl_;
};

}  // namespace ge

#endif  // NORMGRAD_GE_GE_API_H_
