#include "peers.hpp"

#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

namespace normgrad::tool {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

// The largest cases take seconds: PyTorch's RMSNorm of 32768x4096 half of one for each run.
constexpr auto kTimeLimit = 2min;
// An answer to 100000 runs takes 2 MiB.
constexpr size_t kLongestAnswer = size_t{16} << 20;

struct KnownPeer {
  const char *name, *program, *if_missing;
};
constexpr KnownPeer kKnown[] = {
    {"onednn", "onednn_peer",
     "this normgrad was built without oneDNN; install it (Debian's package is libdnnl-dev), then "
     "configure and build again"},
    {"torch", "torch_peer.py", "its program torch_peer.py is missing; install normgrad again"},
};

// The programs lie in a folder beside the tool, or in libexec once installed.
std::string path_of(const KnownPeer& peer) {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* folder : {"peers", NORMGRAD_PEERS_FOLDER}) {
    const auto path = (here / folder / peer.program).lexically_normal();
    if (std::filesystem::exists(path)) return path.string();
  }
  throw std::runtime_error(fmt::format("{}: {}", peer.name, peer.if_missing));
}

std::vector<std::string> command_of(const std::string& name) {
  const auto peer = std::find_if(std::begin(kKnown), std::end(kKnown),
                                 [&](auto& each) { return each.name == name; });
  if (peer == std::end(kKnown)) {
    throw std::runtime_error(
        fmt::format("expected one of {}; got '{}'", fmt::join(Peer::known(), ", "), name));
  }
  const std::string path = path_of(*peer);
  if (!path.ends_with(".py")) return {path};
  const char* python = std::getenv("NORMGRAD_PYTHON");
  return {python && *python ? python : "python3", path};
}

// The environment of a peer. malloc keeps its memory: by default glibc returns a large output to
// the system when it is freed, and a library that allocates its outputs, as PyTorch does, is then
// measured at taking page faults (its LayerNorm of 8192x1024 in float32: 3 times slower).
std::vector<std::string> environment(int threads) {
  std::vector<std::string> result = {fmt::format("OMP_NUM_THREADS={}", threads),
                                     "MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=1099511627776"};
  const size_t own = result.size();
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable;
    const auto same_name = [&](const std::string& each) {
      return text.starts_with(each.substr(0, each.find('=') + 1));
    };
    if (std::none_of(result.begin(), result.begin() + static_cast<ptrdiff_t>(own), same_name)) {
      result.emplace_back(text);
    }
  }
  return result;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result(strings.size() + 1);  // ends with a null pointer
  for (size_t i = 0; i < strings.size(); ++i) result[i] = const_cast<char*>(strings[i].c_str());
  return result;
}

// Returns when the process has nothing to do. The threads of an OpenMP library look for work for
// some milliseconds after they had some (libgomp: 3 to 8 ms here), and whoever is measured next
// must not share the processors with them.
void wait_until_idle(clockid_t process) {
  const auto cpu_time = [&] {
    timespec time{};
    clock_gettime(process, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  const auto end = Clock::now() + 500ms;
  while (Clock::now() < end) {
    const auto before = cpu_time();
    std::this_thread::sleep_for(2ms);
    if (cpu_time() - before < 200us) return;
  }
}

class File {
 public:
  explicit File(int number) : number_(number) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int number() const { return number_; }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

}  // namespace

// A program, its standard input and output (one socket, so that a write to a program that has
// ended is an error and not a signal) and what it says on standard error.
class Peer::Process {
 public:
  Process(std::string name, const std::vector<std::string>& command, int threads,
          std::chrono::milliseconds time_limit)
      : name_(std::move(name)), time_limit_(time_limit) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 || errors_.number() < 0) {
      fail("cannot make a socket: {}", std::strerror(errno));
    }
    socket_.emplace(pair[0]);
    File theirs(pair[1]);

    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, theirs.number(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, theirs.number(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, errors_.number(), STDERR_FILENO);
    const std::vector<std::string> variables = environment(threads);
    const int error = posix_spawnp(&pid_, command[0].c_str(), &files, nullptr,
                                   pointers(command).data(), pointers(variables).data());
    posix_spawn_file_actions_destroy(&files);
    if (error != 0) {
      pid_ = 0;
      fail("cannot start '{}': {}", command[0], std::strerror(error));
    }
  }

  // The end of its input ends the program; otherwise a signal does.
  ~Process() { end(2s); }

  json ask(const json& request) {
    const std::string what = request["do"];
    send(request.dump() + "\n", what);
    const std::string line = receive(what);
    json answer = json::parse(line, nullptr, false);
    if (!answer.is_object()) {
      fail("expected a JSON object as the answer to '{}'; got '{}'", what, line.substr(0, 200));
    }
    return answer;
  }

  // As above, for requests that cannot be refused.
  json demand(const json& request) {
    json answer = ask(request);
    if (!is_ok(answer)) fail("{}", why(answer));
    return answer;
  }

  static bool is_ok(const json& answer) {
    const auto ok = answer.find("ok");
    return ok == answer.end() || *ok == true;
  }
  static std::string why(const json& answer) {
    const json reason = answer.value("why", json());
    return reason.is_string() ? reason.get<std::string>() : "it gave no reason";
  }

  void wait_until_idle() const {
    clockid_t clock;
    if (clock_getcpuclockid(pid_, &clock) == 0) tool::wait_until_idle(clock);
  }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw std::runtime_error(name_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  void send(std::string_view text, const std::string& what) {
    while (!text.empty()) {
      const ssize_t sent = ::send(socket_->number(), text.data(), text.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) fail_ended(what);
      text.remove_prefix(static_cast<size_t>(sent));
    }
  }

  // The next line, without its end.
  std::string receive(const std::string& what) {
    const auto deadline = Clock::now() + time_limit_;
    size_t newline = received_.find('\n');
    while (newline == std::string::npos) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd event = {socket_->number(), POLLIN, 0};
      const int ready = poll(&event, 1, static_cast<int>(std::max<int64_t>(left, 0)));
      if (ready < 0 && errno == EINTR) continue;
      if (ready == 0) {
        end(0s);
        fail("no answer to '{}' within {} s", what,
             std::chrono::duration<double>(time_limit_).count());
      }
      char piece[4096];
      const ssize_t size = recv(socket_->number(), piece, sizeof(piece), 0);
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) fail_ended(what);
      received_.append(piece, static_cast<size_t>(size));
      newline = received_.find('\n', received_.size() - static_cast<size_t>(size));
      if (received_.size() > kLongestAnswer) {
        end(0s);
        fail("expected an answer to '{}' of at most {} bytes; got more", what, kLongestAnswer);
      }
    }
    std::string line = received_.substr(0, newline);
    received_.erase(0, newline + 1);
    return line;
  }

  [[noreturn]] void fail_ended(const std::string& what) {
    const int status = end(2s);
    const std::string how = WIFEXITED(status)
                                ? fmt::format("exit code {}", WEXITSTATUS(status))
                                : fmt::format("signal {}", strsignal(WTERMSIG(status)));
    fail("the program ended at '{}' with {}{}", what, how, last_words());
  }

  // The last line on standard error: for a Python program the exception.
  std::string last_words() const {
    std::string text(4096, '\0');
    const off_t size = lseek(errors_.number(), 0, SEEK_END);
    const ssize_t got = pread(errors_.number(), text.data(), text.size(),
                              std::max<off_t>(size - static_cast<off_t>(text.size()), 0));
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const size_t line = text.rfind('\n') + 1;  // 0 if there is only one
    return text.empty() ? "" : ": " + text.substr(line);
  }

  // Waits for the end of the program, and brings it about if that takes too long. Its exit status.
  int end(std::chrono::milliseconds patience) {
    if (socket_) socket_->close();
    int status = 0;
    const auto deadline = Clock::now() + patience;
    while (pid_ > 0) {
      if (Clock::now() >= deadline) kill(pid_, SIGKILL);
      const bool running = waitpid(pid_, &status, Clock::now() >= deadline ? 0 : WNOHANG) == 0;
      if (!running) pid_ = 0;
      if (running) std::this_thread::sleep_for(2ms);
    }
    return status;
  }

  std::string name_;
  std::chrono::milliseconds time_limit_;
  File errors_{memfd_create("peer", MFD_CLOEXEC)};
  std::optional<File> socket_;
  pid_t pid_ = 0;
  std::string received_;
};

std::vector<std::string> Peer::known() {
  std::vector<std::string> names;
  for (const KnownPeer& each : kKnown) names.emplace_back(each.name);
  return names;
}

Peer::Peer(const std::string& name, int threads)
    : Peer(name, command_of(name), threads, kTimeLimit) {}

Peer::Peer(const std::string& name, const std::vector<std::string>& command, int threads,
           std::chrono::milliseconds time_limit)
    : name_(name), process_(std::make_unique<Process>(name, command, threads, time_limit)) {
  const json answer = process_->demand({{"do", "hello"}, {"threads", threads}});
  const json version = answer.value("version", json());
  if (!version.is_string()) process_->fail("expected a version; got {}", version.dump());
  version_ = version;
}

Peer::~Peer() = default;
Peer::Peer(Peer&&) noexcept = default;
Peer& Peer::operator=(Peer&&) noexcept = default;

std::optional<std::string> Peer::prepare(const PeerCase& description) {
  json request = {{"do", "prepare"},
                  {"operator", description.op},
                  {"shape", description.shape},
                  {"layout", description.layout},
                  {"dtype", description.dtype},
                  {"eps", description.eps}};
  for (const auto& [operand, path] : {std::pair("x", description.x),
                                      {"dy", description.dy},
                                      {"gamma", description.gamma},
                                      {"mean", description.mean},
                                      {"rstd", description.rstd},
                                      {"variance", description.variance}}) {
    if (!path.empty()) request[operand] = path;
  }
  const json answer = process_->ask(request);
  if (Process::is_ok(answer)) return {};
  return Process::why(answer);
}

std::vector<double> Peer::run(int repeat) {
  wait_until_idle(CLOCK_PROCESS_CPUTIME_ID);
  const json answer = process_->demand({{"do", "run"}, {"repeat", repeat}});
  process_->wait_until_idle();
  const json seconds = answer.value("seconds", json());
  const bool good = seconds.is_array() && seconds.size() == static_cast<size_t>(repeat) &&
                    std::all_of(seconds.begin(), seconds.end(), [](const json& each) {
                      return each.is_number() && each.get<double>() > 0;
                    });
  if (!good) {
    process_->fail("expected the seconds of {} runs; got {}", repeat,
                   seconds.dump().substr(0, 200));
  }
  return seconds;
}

void Peer::check(const PeerOutputs& outputs) {
  json request = {{"do", "check"}, {"dx", outputs.dx}, {"dgamma", outputs.dgamma}};
  if (!outputs.dbeta.empty()) request["dbeta"] = outputs.dbeta;
  process_->demand(request);
}

void Peer::release() { process_->demand({{"do", "release"}}); }

}  // namespace normgrad::tool
