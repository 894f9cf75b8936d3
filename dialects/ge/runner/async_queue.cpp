// The thread behind RunGraphAsync.
#include "runner/async_queue.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>

namespace normgrad::graph_mode {

struct AsyncQueue::State {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  bool closed = false;
  std::thread thread;

  void work() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closed || !jobs.empty(); });
      if (jobs.empty()) return;
      std::function<void()> job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
      job = nullptr;  // what it holds is freed before the lock is taken
      lock.lock();
    }
  }
};

AsyncQueue::AsyncQueue() : state_(std::make_shared<State>()) {}

AsyncQueue::~AsyncQueue() {
  std::thread thread;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed = true;
    thread = std::move(state_->thread);
  }
  state_->changed.notify_one();
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else {
    thread.join();
  }
}

void AsyncQueue::push(std::function<void()> job) {
  const std::shared_ptr<State> state = state_;  // the job may end this object before we return
  {
    const std::lock_guard<std::mutex> lock(state->mutex);
    if (!state->thread.joinable()) {
      state->thread = std::thread([state] { state->work(); });
    }
    state->jobs.push_back(std::move(job));
  }
  state->changed.notify_one();
}

bool AsyncQueue::is_this_thread() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->thread.get_id() == std::this_thread::get_id();
}

}  // namespace normgrad::graph_mode
