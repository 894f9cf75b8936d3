// The sentences of a thread: its last error and its warnings since they were last taken.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "error.hpp"

namespace normgrad::graph_mode {
namespace {

// Two buffers, so that the text taken last stays readable.
struct Sentences {
  static constexpr size_t kRoom = 2048;
  char text[kRoom];
  char taken[kRoom];
  size_t length;

  void append(const char* sentence) noexcept {
    const size_t count = std::min(std::strlen(sentence), kRoom - 1 - length);
    std::memcpy(text + length, sentence, count);
    length += count;
  }
  const char* take() noexcept {
    std::memcpy(taken, text, length);
    taken[length] = 0;
    length = 0;
    return taken;
  }
};

// Plain zero-initialized memory: nothing to construct or destroy with the thread.
constinit thread_local Sentences t_error{};
constinit thread_local Sentences t_warnings{};

}  // namespace

void set_error(const char* sentence) noexcept {
  t_error.length = 0;
  t_error.append(sentence);
}

void add_warning(const char* sentence) noexcept {
  if (t_warnings.length > 0) t_warnings.append("\n");
  t_warnings.append(sentence);
}

const char* take_error() noexcept { return t_error.take(); }

const char* take_warnings() noexcept { return t_warnings.take(); }

}  // namespace normgrad::graph_mode
