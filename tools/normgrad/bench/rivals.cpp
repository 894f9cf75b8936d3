#include "bench/rivals.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "bench/pieces.hpp"
#include "calls.hpp"
#include "reference/elements.hpp"

namespace normgrad::tool {
namespace {

constexpr double kLargestError = 2e-2;
constexpr size_t kCheckedPieces = 16;  // about 4 million elements

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "normgrad_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error(name + ": cannot make this folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const char* name) const { return (path_ / name).string(); }

  std::string write(const char* name, const void* data, int64_t bytes) const {
    std::ofstream file(path(name), std::ios::binary);
    file.write(static_cast<const char*>(data), bytes);
    file.close();
    if (!file) throw std::runtime_error(path(name) + ": cannot write it");
    return path(name);
  }
  std::string write(const char* name, const std::vector<float>& values) const {
    return write(name, values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
  }
  std::vector<char> read(const char* name, int64_t bytes) const {
    std::vector<char> data(static_cast<size_t>(bytes));
    std::ifstream file(path(name), std::ios::binary);
    file.read(data.data(), bytes);
    if (!file || file.peek() != EOF) {
      throw std::runtime_error(
          fmt::format("{}: expected {} bytes from the peer", path(name), bytes));
    }
    return data;
  }

 private:
  std::filesystem::path path_;
};

std::vector<float> floats(const std::optional<Tensor>& tensor, const void* data) {
  const std::vector<double> values = reference::gather(*tensor, data);
  return {values.begin(), values.end()};
}

// A case as peers see it: the same, but for a LayerNorm, which they do from x, mean and rstd.
struct PeerView {
  reference::Call call;
  Buffers buffers;
  std::vector<float> mean, rstd;  // of a LayerNorm

  explicit PeerView(const Trial& trial) : call(trial.call()), buffers(trial.buffers()) {
    auto* const layer_norm = std::get_if<LayerNormBackward>(&call);
    if (!layer_norm) return;
    const auto rows = static_cast<size_t>(layer_norm->x.shape[0]);
    mean.resize(rows);
    rstd.resize(rows);
    for_each_piece(pieces_of(call, buffers), [&](const Piece& piece) { reduce_rows(piece); });
    layer_norm->statistics = Statistics::kMeanRstd;
    layer_norm->mean = layer_norm->spread = {DType::kF32, {layer_norm->x.shape[0]}};
    buffers.mean = mean.data();
    buffers.spread = rstd.data();
  }
  PeerView(const PeerView&) = delete;
  PeerView& operator=(const PeerView&) = delete;

  void reduce_rows(const Piece& piece) {
    const Tensor tensor = *operands_of(piece.call).x;
    const std::vector<double> x = reference::gather(tensor, piece.buffers.x);
    const auto cols = static_cast<size_t>(tensor.shape[1]);
    for (size_t row = 0; row < x.size() / cols; ++row) {
      const double* const of_row = x.data() + row * cols;
      double sum = 0, squares = 0;
      for (size_t i = 0; i < cols; ++i) sum += of_row[i];
      const double center = sum / static_cast<double>(cols);
      for (size_t i = 0; i < cols; ++i) squares += (of_row[i] - center) * (of_row[i] - center);
      mean[piece.begin + row] = static_cast<float>(center);
      rstd[piece.begin + row] =
          squares == 0 ? 0 : static_cast<float>(1 / std::sqrt(squares / static_cast<double>(cols)));
    }
  }
};

// |dx - exact| / |exact| over pieces from all parts of dx.
double relative_error(const PeerView& view, void* dx) {
  Buffers buffers = view.buffers;
  buffers.dx = dx;
  const std::vector<Piece> pieces = pieces_of(view.call, buffers);
  const size_t step = (pieces.size() + kCheckedPieces - 1) / kCheckedPieces;
  double error = 0, norm = 0;
  for (size_t i = 0; i < pieces.size(); i += step) {
    const std::vector<double> exact = oracle(pieces[i].call, pieces[i].buffers).dx;
    const std::vector<double> got =
        reference::gather(*operands_of(pieces[i].call).dx, pieces[i].buffers.dx);
    for (size_t j = 0; j < exact.size(); ++j) {
      error += (got[j] - exact[j]) * (got[j] - exact[j]);
      norm += exact[j] * exact[j];
    }
  }
  return std::sqrt(error / norm);
}

PeerCase write_case(const TemporaryFolder& folder, const BenchCase& description,
                    const PeerView& view) {
  const Operands operands = operands_of(view.call);
  const Buffers& data = view.buffers;
  PeerCase files;
  files.op = name_of(description.shape.op);
  files.shape = description.shape.extents;
  files.layout = name_of(description.shape.layout);
  files.dtype = name_of(description.dtype);
  files.x = folder.write("x", data.x, bytes_of(operands.x));
  files.dy = folder.write("dy", data.dy, bytes_of(operands.dy));
  files.gamma = folder.write("gamma", floats(operands.gamma, data.gamma));
  if (operands.mean) files.mean = folder.write("mean", floats(operands.mean, data.mean));
  if (description.shape.op == Op::kLayerNorm) files.rstd = folder.write("rstd", view.rstd);
  if (description.shape.op == Op::kBatchNorm) {
    files.variance = folder.write("variance", floats(operands.spread, data.spread));
  }
  return files;
}

}  // namespace

void Rivals::start(int threads) {
  peers_.clear();
  for (const std::string& name : names_) peers_.emplace_back(name, threads);
}

std::map<std::string, std::string> Rivals::versions() const {
  std::map<std::string, std::string> versions;
  for (const Peer& peer : peers_) versions[peer.name()] = peer.version();
  return versions;
}

std::vector<Contestant> Rivals::enter(const BenchCase& description, const Trial& trial) {
  if (peers_.empty()) return {};
  const TemporaryFolder folder;
  const PeerView view(trial);
  const PeerCase files = write_case(folder, description, view);
  const bool has_dbeta = description.shape.op != Op::kRmsNorm;
  const PeerOutputs outputs = {folder.path("dx"), folder.path("dgamma"),
                               has_dbeta ? folder.path("dbeta") : ""};
  std::vector<Contestant> contestants;
  for (Peer& peer : peers_) {
    if (const std::optional<std::string> why = peer.prepare(files)) {
      ++absences_[peer.name() + ": " + *why];
      continue;
    }
    peer.run(1);
    peer.check(outputs);
    std::vector<char> dx = folder.read("dx", trial.data_bytes());
    const double error = relative_error(view, dx.data());
    if (!(error <= kLargestError)) {
      peer.release();
      ++absences_[fmt::format("{}: its dx is wrong by {:.1g} of its norm for {}", peer.name(),
                              error, description.name())];
      continue;
    }
    competing_.push_back(&peer);
    contestants.push_back({peer.name(), [&peer](int64_t samples, int64_t calls) {
                             return peer.run(static_cast<int>(samples * calls));
                           }});
  }
  return contestants;
}

void Rivals::leave() {
  for (Peer* peer : competing_) peer->release();
  competing_.clear();
}

}  // namespace normgrad::tool
