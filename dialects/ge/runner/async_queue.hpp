// AsyncQueue: one thread that works off jobs in their order. It starts with the first job.
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace normgrad::graph_mode {

class AsyncQueue {
 public:
  AsyncQueue();
  ~AsyncQueue();  // after all jobs are done; from one of its jobs, without waiting
  AsyncQueue(const AsyncQueue&) = delete;
  AsyncQueue& operator=(const AsyncQueue&) = delete;

  // Jobs must not throw.
  void push(std::function<void()> job);
  bool is_this_thread() const;

 private:
  struct State;
  // Shared with the thread, which may outlive this object: by the jobs that are queued when it ends
  // inside one of them.
  std::shared_ptr<State> state_;
};

}  // namespace normgrad::graph_mode
