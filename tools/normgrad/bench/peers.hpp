// Other libraries on the data of a case. Each is a program of its own, since two libraries with
// threads do not share a process well; what they say to each other is in docs/peers.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace normgrad::tool {

// What a peer computes. The operands are files that hold raw little-endian arrays.
struct PeerCase {
  std::string op;              // layer_norm, rms_norm or batch_norm
  std::vector<int64_t> shape;  // rows, cols; BatchNorm: samples, channels, length
  std::string layout;          // rows, channels_first or channels_last: the order in memory
  std::string dtype;           // f32, f16 or bf16: of x, dy and dx; all else is float32
  std::string x, dy, gamma;
  std::string mean, rstd;     // LayerNorm: those of x
  std::string variance = {};  // BatchNorm: beside mean, instead of rstd
  double eps = 0;
};

// The files that receive the gradients of the last run. RMSNorm has no dbeta.
struct PeerOutputs {
  std::string dx;  // in the type and layout of the case
  std::string dgamma, dbeta;
};

// Everything throws std::runtime_error with a sentence when the program is missing, ends, does not
// answer in time or answers nonsense. After that the peer is of no more use.
class Peer {
 public:
  static std::vector<std::string> known();

  // Starts the program of that name; the sentence of a failure says what to install.
  Peer(const std::string& name, int threads);
  // Starts any program that speaks as a peer does. The time limit holds for each answer.
  Peer(const std::string& name, const std::vector<std::string>& command, int threads,
       std::chrono::milliseconds time_limit);
  ~Peer();
  Peer(Peer&&) noexcept;
  Peer& operator=(Peer&&) noexcept;

  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }  // of the library

  // Reads the operands. The answer, if there is one, is why the library cannot do this.
  std::optional<std::string> prepare(const PeerCase& description);
  // The seconds of each of `repeat` runs, after one that is not timed.
  std::vector<double> run(int repeat);
  void check(const PeerOutputs& outputs);
  void release();

 private:
  class Process;

  std::string name_, version_;
  std::unique_ptr<Process> process_;
};

}  // namespace normgrad::tool
